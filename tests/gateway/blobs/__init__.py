"""Tests of blobs: uploads, downloads, stores."""
