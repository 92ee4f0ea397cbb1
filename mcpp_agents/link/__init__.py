"""`mcpp link`: a participant of two pods that mirrors chosen contexts between them."""
