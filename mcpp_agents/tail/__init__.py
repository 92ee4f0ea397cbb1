"""`mcpp tail`: print the messages of a pod."""
