"""One connection, one exchange: parsing, limits, bad input."""
