"""`mcpp tail`: prints a pod's envelopes as they arrive."""
