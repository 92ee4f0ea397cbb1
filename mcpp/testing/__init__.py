"""Tools for testing agents: Hypothesis strategies for everything that travels."""
