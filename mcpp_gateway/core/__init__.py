"""The rules of a pod, without I/O: sessions, contexts, log, rates, refusals and effects."""
