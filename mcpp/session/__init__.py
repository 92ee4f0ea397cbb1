"""The client's protocol state machine: texts and times in, effects and texts out. Pure."""
