"""Parties that need not trust a server: their roster, and sums of which only the sum is known."""
