"""Storage of memory items: the engine interface and its SQLite implementation."""
