"""The readings, by the path that NumPyro gives to its own."""

from .reading.handlers import marginal, quadratic_bound, states

__all__ = ["marginal", "quadratic_bound", "states"]
