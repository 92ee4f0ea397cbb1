"""MCPP: the message bus on which AI agents, tools and people work together."""

__version__ = "0.1.0"
