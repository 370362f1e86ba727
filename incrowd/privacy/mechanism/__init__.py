"""How contributions are bounded, added up and hidden."""
