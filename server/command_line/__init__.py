"""The command-line parser, and the flags of other servers that ``ebbtide serve`` accepts."""
