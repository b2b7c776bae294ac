"""What a gateway knows of its past, by route, and of the other gateways of its deployment."""
