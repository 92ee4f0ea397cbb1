"""How participants come and go: their settings and limits, presence, and how a session begins."""
