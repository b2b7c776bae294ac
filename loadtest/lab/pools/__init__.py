"""Worker pools on long tasks: the programs that are measured, and what is made of the figures."""
