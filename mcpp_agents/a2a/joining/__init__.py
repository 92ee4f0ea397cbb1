"""A remote A2A agent as a participant: its card, messages to it, its tasks as contexts."""
