"""The report of runs: one page without a network, of public facts alone."""
