"""The simulated runner."""
