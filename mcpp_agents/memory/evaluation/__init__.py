"""Measuring retrieval: collections of questions, baselines, and the table that `bench` prints."""
