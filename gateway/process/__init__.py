"""The parent, its children, and what they share: sockets and counters."""
