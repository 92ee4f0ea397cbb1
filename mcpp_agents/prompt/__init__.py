"""`mcpp prompt`: what a participant's model is shown, and whether an answer matches its record."""
