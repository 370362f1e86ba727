"""The promise: who takes part, how much each may say, what hides it, what it costs, and what was spent."""
