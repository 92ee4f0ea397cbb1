"""The connection to real NATS servers."""
