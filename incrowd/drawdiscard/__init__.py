"""Learning from devices that trust nobody: each draws a model, updates it with noise of its own, and sends it back."""
