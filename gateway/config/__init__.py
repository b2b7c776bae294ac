"""Every setting and route, where they come from, and what cannot work together."""
