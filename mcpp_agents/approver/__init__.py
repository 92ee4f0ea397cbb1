"""`mcpp approver`: decides on proposals by rules."""
