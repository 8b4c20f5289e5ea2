"""The programs: what the world does. Each is a plain NumPyro function; no inference here."""

import sys

# In a checkout the folder has a name too: one set of modules under both.
if __name__ == "ppl_models":
    from latentbits._checkout import alias

    sys.modules[__name__] = alias(__name__, "latentbits.models")

from .bernoulli_mixture import bernoulli_mixture, bernoulli_product
from .binary_sparse_coding import binary_sparse_coding
from .categorical_mixture import categorical_mixture
from .clipped_gaussian import clipped_gaussian
from .combination_machine import combination_machine, real_combination_machine
from .graded_trait import graded_trait
from .latent_trait import latent_trait
from .mixed_trait import mixed_trait
from .noisy_or_network import noisy_or_network
from .sparse_coding import sparse_coding
from .trait_mixture import trait_mixture

__all__ = [
    "bernoulli_mixture",
    "bernoulli_product",
    "binary_sparse_coding",
    "categorical_mixture",
    "clipped_gaussian",
    "combination_machine",
    "graded_trait",
    "latent_trait",
    "mixed_trait",
    "noisy_or_network",
    "real_combination_machine",
    "sparse_coding",
    "trait_mixture",
]
