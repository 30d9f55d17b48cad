"""The building blocks that models share."""
