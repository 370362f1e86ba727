"""Speed, side by side in one run: our engine and what else could do the same work."""
