"""What measurements share, of papers and of competitors: how they are repeated, shown and drawn."""
