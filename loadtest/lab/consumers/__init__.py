"""Consumers of RabbitMQ by several drivers, and what its bindings and objects cost."""
