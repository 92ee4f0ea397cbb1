"""Shared by the commands: options, filters as typed, and output that is safe for a terminal."""
