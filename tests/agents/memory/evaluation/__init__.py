"""Tests of measuring retrieval."""
