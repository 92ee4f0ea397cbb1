"""Signed tokens (JWT): issuers and their keys, claims, the gateway's own tokens, revocations."""
