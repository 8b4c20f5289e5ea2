"""The methods, one a file, by family."""
