"""The connection to real NATS servers, and what keeps local ones running."""
