"""The pages of the admin port, which people open: rendered here, and readable without scripts."""
