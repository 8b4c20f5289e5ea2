"""How good parameters are, whichever method found them."""
