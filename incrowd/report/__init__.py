"""What people see of runs: one page without a network, of what may be handed on and nothing else."""
