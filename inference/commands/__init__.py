"""The commands, one a file: options in, lines out."""
