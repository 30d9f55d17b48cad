"""The scheduler: which request gets which tokens and pages in the next step. Pure logic, except ``process.py``."""
