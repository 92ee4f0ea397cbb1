"""What the gateways of a cluster share through the engine: secrets and signed tokens."""
