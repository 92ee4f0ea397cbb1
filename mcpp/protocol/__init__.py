"""The wire protocol: envelopes, their codec, contexts, capabilities and JSON-RPC. Pure."""
