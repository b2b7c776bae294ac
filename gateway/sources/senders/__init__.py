"""The schemes: each is NAME.toml, a block of data, or NAME.py, a subclass of `Source`."""
