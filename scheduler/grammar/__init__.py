"""Grammar-constrained requests: compilation of grammars, and the position of each request in its grammar."""
