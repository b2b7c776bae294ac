"""Senders as blocks of data: one file a sender, and its vectors beside it."""
