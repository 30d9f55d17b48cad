"""The simulated runner (``MODEL sim``)."""
