"""The broker: publishing, confirms, returns, reconnection, and the bytes of frames."""
