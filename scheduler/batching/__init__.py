"""Decides which requests get which tokens in the next step: admission, order and the step plan."""
