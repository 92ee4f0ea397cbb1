"""`mcpp send`: sends one envelope."""
