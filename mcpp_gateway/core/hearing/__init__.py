"""Who hears what: filters compiled together, and what a participant may hear of an entry."""
