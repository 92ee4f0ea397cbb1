"""`mcpp call`: a tool call from a terminal or a script."""
