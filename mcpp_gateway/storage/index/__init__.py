"""The rebuildable index of a log: positions by id, and positions by words and facts."""
