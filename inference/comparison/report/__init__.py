"""The HTML report of a comparison and its figures."""
