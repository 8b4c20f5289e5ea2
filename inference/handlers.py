"""The readings, by the path that NumPyro gives to its own."""

from .reading.handlers import quadratic_bound, states, weighted
from .reading.marginal import marginal

__all__ = ["marginal", "quadratic_bound", "states", "weighted"]
