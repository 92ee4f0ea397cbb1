"""Blobs: content that envelopes name, kept beside the logs of the pods."""
