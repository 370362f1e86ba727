"""What was spent, on disk before anything is released."""
