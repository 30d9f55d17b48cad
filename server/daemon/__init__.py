"""The daemon: starts, monitors, restarts and stops the engine processes."""
