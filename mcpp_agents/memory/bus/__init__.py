"""Memory as a participant of a pod: listens, summarizes, records, and serves its tools."""
