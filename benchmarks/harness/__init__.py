"""What measurements share, of papers and of competitors: checks of what is asked for."""
