"""The gateway: the broadcast server of a pod."""
