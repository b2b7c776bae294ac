"""The real gateway in virtual time, against a broker and a Redis of our own. docs/simulation.md"""
