"""Figures and uses of draw and discard (Pihur et al. 2018), measured anew."""
