"""Content that envelopes name: who may name it, who may read it, and how long it is kept."""
