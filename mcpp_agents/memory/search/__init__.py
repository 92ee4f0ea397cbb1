"""Search over memory items: words, vectors, ranking, and compiling a context pack."""
