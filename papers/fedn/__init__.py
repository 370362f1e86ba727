"""What the article on FEDn with Opacus shows, measured anew."""
