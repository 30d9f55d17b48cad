"""The parser of the command line, and the flags of other servers that it accepts."""
