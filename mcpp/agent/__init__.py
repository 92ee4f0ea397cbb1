"""Agents: handlers, tools and resources, run as one participant of a pod."""
