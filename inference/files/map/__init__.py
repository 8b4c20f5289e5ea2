"""The map of a table: its rows as points on a plane of two latent factors."""
