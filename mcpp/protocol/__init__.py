"""The wire protocol: envelopes, their codec, contexts and capabilities. Pure."""
