"""TBD."""
def options(parser): pass
def run(a): return 0
