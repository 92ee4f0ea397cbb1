"""Measuring a gateway: clients light enough not to be measured themselves, and `mcpp bench`."""
