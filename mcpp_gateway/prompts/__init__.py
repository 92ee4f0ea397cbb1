"""What a participant's model would be shown, computed from the log in another process."""
