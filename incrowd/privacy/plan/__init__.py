"""What is promised before anything is spent: who takes part, how often, with which noise."""
