"""Redis: results pushed and asked for, subscriptions, commands of many on one connection."""
