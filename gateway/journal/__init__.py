"""What was received, in Redis, and publishing it once more."""
