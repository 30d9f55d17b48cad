"""The routes that generate no text: health, models, sessions, control, pressure and load."""
