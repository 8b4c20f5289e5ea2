"""A clipped Gaussian from the correlations of its bits, in closed form."""
