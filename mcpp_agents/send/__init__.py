"""`mcpp send`: send one envelope to a pod, and optionally wait for the answer."""
