"""The gateway: the server that admits participants to pods and relays their envelopes."""
