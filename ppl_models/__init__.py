"""The programs: what the world does. Each is a plain NumPyro function; how to infer is not said here."""

from ppl_models.binary_sparse_coding import binary_sparse_coding

__all__ = ["binary_sparse_coding"]
