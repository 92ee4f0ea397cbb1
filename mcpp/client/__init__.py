"""A connected participant: connecting, sending, requests, proposals and contexts."""
