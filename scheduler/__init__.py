"""The scheduler decides which requests get which tokens and pages in the next step.

Pure logic, except ``process.py``.
"""
