"""Noisy copies of a few random patterns: binary data with clusters."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, random


class Prototypes(NamedTuple):
    """Noisy copies, and what they are copies of.

    >>> truth = prototypes(random.key(0), flip=0.0)
    >>> bool((truth.data == truth.prototypes[truth.label]).all())
    True
    """

    data: Array
    """(num_prototypes·copies, num_features), 0/1; all copies of the first prototype first"""
    prototypes: Array
    """(num_prototypes, num_features), 0/1"""
    label: Array
    """(num_prototypes·copies,), int: whose copy a row is"""
    flip: Array
    """(): the probability with which a bit was inverted"""


def prototypes(
    key: Array,
    num_prototypes: int = 3,
    copies: int = 200,
    num_features: int = 16,
    flip: float | Array = 0.05,
) -> Prototypes:
    """The synthetic clusters of Tipping (1998), section 4.

    Random prototypes (each bit on with probability ½), ``copies`` examples of each, every bit
    inverted with probability ``flip``: 0.05 in the paper's first set, 0.15 in its second.

    >>> truth = prototypes(random.key(0))
    >>> truth.data.shape, truth.prototypes.shape
    ((600, 16), (3, 16))
    """
    key_prototypes, key_flips = random.split(key)
    centres = random.bernoulli(key_prototypes, 0.5, (num_prototypes, num_features))
    label = jnp.repeat(jnp.arange(num_prototypes), copies)
    inverted = random.bernoulli(key_flips, flip, (num_prototypes * copies, num_features))
    data = jnp.logical_xor(centres[label], inverted).astype(float)
    return Prototypes(data, centres.astype(data.dtype), label, jnp.asarray(flip, data.dtype))
