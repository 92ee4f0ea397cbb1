"""`mcpp chat`: a terminal interface for people: messages, folded contexts, proposals to decide."""
