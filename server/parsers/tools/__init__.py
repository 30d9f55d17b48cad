"""One parser per family of tool calls, and the table of families."""
