"""Tests of what is made of a pack."""
