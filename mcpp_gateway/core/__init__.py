"""The rules of a pod: sessions, contexts, log, rates and refusals. Pure."""
