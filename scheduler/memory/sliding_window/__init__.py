"""The pool of the layers with a sliding window."""
