"""A run on disk and on paper."""
