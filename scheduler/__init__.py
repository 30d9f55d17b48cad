"""The scheduler decides which requests get which tokens and pages in the next step.

``core.py`` uses no clock, socket or tensor; ``process.py`` runs it.
"""
