"""The journal of received deliveries, in Redis, and their replay."""
