"""Commands about this user's running servers."""
