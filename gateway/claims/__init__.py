"""Claims on deliveries, in Redis: each delivery is taken once."""
