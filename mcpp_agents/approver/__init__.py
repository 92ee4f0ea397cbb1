"""`mcpp approver`: an agent that decides on proposals by rules."""
