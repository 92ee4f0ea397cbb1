"""The protocol state machine of a client: texts and times in, effects and texts out. Pure."""
