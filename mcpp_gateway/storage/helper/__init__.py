"""A process that reads and indexes logs for the gateway: messages, program, and its handle."""
