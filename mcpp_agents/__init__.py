"""Agents that join a pod: memory, bridges, models, people."""
