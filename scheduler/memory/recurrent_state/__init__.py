"""The pool of the layers with a recurrent state."""
