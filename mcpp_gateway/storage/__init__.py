"""The durable log: segments on disk, the writer thread, and the rebuildable index."""
