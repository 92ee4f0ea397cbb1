"""`mcpp a2a`: remote A2A agents as participants, and participants as A2A agents."""
