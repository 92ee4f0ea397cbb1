"""Who decides for a pod, and how commands reach the gateway that does."""
