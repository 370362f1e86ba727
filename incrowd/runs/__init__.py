"""What a run leaves on disk and on paper."""
