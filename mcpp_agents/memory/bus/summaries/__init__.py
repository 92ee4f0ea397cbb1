"""Summaries of what is said in contexts: by sentences or by a model, at the end or before it."""
