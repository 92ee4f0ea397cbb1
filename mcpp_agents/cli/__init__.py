"""Shared by the commands: arguments, display of envelopes, log format, filter shorthand."""
