"""The PostgreSQL engine: a memory that many processes share, with pgvector for vectors."""
