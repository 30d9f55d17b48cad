"""The life of a daemon: child processes, start, restart, drain and end."""
