"""Gibbs sampling of bits: a kernel for MCMC, and the noisy-OR networks' own EM."""
