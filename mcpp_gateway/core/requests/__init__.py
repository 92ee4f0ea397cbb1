"""Requests to the gateway itself (`pod/*`), a module per kind, and the answers to one session."""
