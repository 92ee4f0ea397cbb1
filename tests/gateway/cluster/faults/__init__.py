"""A real cluster under load while something fails."""
