"""`mcpp bridge --acp`: a coding agent that speaks the Agent Client Protocol as a participant."""
