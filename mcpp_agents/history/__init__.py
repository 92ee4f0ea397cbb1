"""`mcpp search` and `mcpp show`: find and read what was said in a pod."""
