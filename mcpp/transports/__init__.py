"""Transports: connections that carry texts between a client session and a gateway."""
