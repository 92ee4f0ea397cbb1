"""Participants as A2A agents: cards, tasks from the pod's log, and the HTTP server."""
