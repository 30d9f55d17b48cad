"""The routes that generate text, one folder per API, and the code that they share."""
