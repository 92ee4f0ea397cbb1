"""Memory as a pod participant: it listens, extracts and stores memories, and serves its tools."""
