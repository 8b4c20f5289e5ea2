"""The programs: what the world does. Each is a plain NumPyro function; no inference here."""

from ppl_models.bernoulli_mixture import bernoulli_mixture, bernoulli_product
from ppl_models.binary_sparse_coding import binary_sparse_coding
from ppl_models.clipped_gaussian import clipped_gaussian
from ppl_models.combination_machine import combination_machine, real_combination_machine
from ppl_models.latent_trait import latent_trait
from ppl_models.mixed_trait import mixed_trait
from ppl_models.noisy_or_network import noisy_or_network

__all__ = [
    "bernoulli_mixture",
    "bernoulli_product",
    "binary_sparse_coding",
    "clipped_gaussian",
    "combination_machine",
    "latent_trait",
    "mixed_trait",
    "noisy_or_network",
    "real_combination_machine",
]
