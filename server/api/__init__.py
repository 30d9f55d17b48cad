"""The routes that generate text, one folder per API, and what they share."""
