"""Invariant checks, recovery, watchdog and dumps."""
