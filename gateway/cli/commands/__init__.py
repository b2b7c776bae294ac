"""The commands: `gateway NAME` is the module NAME."""
