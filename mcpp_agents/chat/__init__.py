"""A person at a terminal: the pod's talk, contexts folded to a line each, proposals to decide."""
