"""The `mcpp` command line."""
