"""The scheduler: which request gets which tokens and pages in the next step. Pure logic but for ``process.py``."""
