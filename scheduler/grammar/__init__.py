"""Grammar-constrained requests: compilation and the state of each."""
