"""Combination machines: pursuit, exact and contrastive gradients."""
