"""Publishing to the broker: confirms, returns, reconnection, and the bytes of frames."""
