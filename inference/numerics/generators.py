"""Random numbers of a traced function that NumPy computes: by NumPy's generators, or JAX's own.

A key is the two words of 32 bits that it is written in, as one number of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

Rules = dict[str, Callable]
"""Primitive -> function of its parameters and its inputs."""


class NotHereError(Exception):
    """Something that neither NumPy nor JAX does outside of a trace."""


def is_key(x: Any) -> bool:
    """Whether these are keys, or their type."""
    return not isinstance(getattr(x, "dtype", np.dtype(int)), np.dtype)


def number_of(key: Any) -> Any:
    """A key of JAX's, or the words that it is written in, for a generator of NumPy's."""
    words = jax.random.key_data(key) if is_key(key) else key
    if np.ndim(words) != 1:
        raise NotHereError
    return _new_key(*np.asarray(words))


def _new_key(*numbers: Any) -> np.uint64:
    return np.random.SeedSequence([int(x) % 2**64 for x in numbers]).generate_state(1, np.uint64)[0]


def _random_bits(how: dict, keys: Any) -> Any:
    kind = np.dtype(f"uint{how['bit_width']}")
    draw = lambda key: np.random.default_rng(key).integers(  # noqa: E731
        0, np.iinfo(kind).max, how["shape"], kind, endpoint=True
    )
    drawn = np.stack([draw(key) for key in np.ravel(keys)])
    return drawn.reshape((*np.shape(keys), *how["shape"]))


def _gamma(how: dict, key: Any, shape: Any) -> Any:
    """Of a small shape most logarithms are below those of the least number that there is."""
    generator = np.random.default_rng(int(key))
    drawn = np.log(generator.standard_gamma(shape + 1.0))
    drawn -= generator.standard_exponential(np.shape(shape)) / shape
    return drawn if how["log_space"] else np.exp(drawn)


def words_of(keys: Any) -> np.ndarray:
    """The two words of each key, (..., 2)."""
    return np.ascontiguousarray(keys)[..., None].view(np.uint32)


BY_NUMPY: Rules = {
    "random_seed": lambda how, seed: _new_key(seed),  # noqa: ARG005
    "random_fold_in": lambda how, key, number: _new_key(key, number),  # noqa: ARG005
    "random_wrap": lambda how, words: number_of(words),  # noqa: ARG005
    "random_unwrap": lambda how, keys: words_of(keys),  # noqa: ARG005
    "random_split": lambda how, key: np.reshape(
        [_new_key(key, i) for i in range(int(np.prod(how["shape"])))], how["shape"]
    ),
    "random_bits": _random_bits,
    "random_gamma": _gamma,
}
"""The same again from the same key, not what JAX would draw from it."""


def keys_of(words: Any) -> np.ndarray:
    """Keys from the words (..., 2) that they are written in."""
    return np.ascontiguousarray(words, np.uint32).view(np.uint64)[..., 0]


def threefry(keys: Any, high: Any, low: Any) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 in 20 rounds (Salmon et al. 2011) of counters, by keys that fit their shape."""
    words = words_of(keys)
    first, second = words[..., 0], words[..., 1]
    key = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
    with np.errstate(over="ignore"):
        a, b = high + first, low + second
        for i in range(5):
            for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
                a = a + b
                b = ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn))) ^ a
            a, b = a + key[(i + 1) % 3], b + key[(i + 2) % 3] + np.uint32(i + 1)
    return a, b


def _counted(keys: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The words of counters 0, 1, … in this shape, by each key: (*keys.shape, *shape)."""
    count = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    high, low = (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)
    return threefry(np.reshape(keys, (*np.shape(keys), *[1] * len(shape))), high, low)


def split(keys: Any, shape: tuple[int, ...]) -> np.ndarray:
    """`jax.random.split` of each key."""
    return keys_of(np.stack(_counted(keys, shape), -1))


def _bits(how: dict, keys: Any) -> np.ndarray:
    if how["bit_width"] != 32:
        raise NotHereError
    high, low = _counted(keys, tuple(how["shape"]))
    return high ^ low


def _folded(keys: Any, numbers: Any) -> np.ndarray:
    words = threefry(keys, np.uint32(0), np.asarray(numbers).astype(np.uint32))
    return keys_of(np.stack(words, -1))


BY_THREEFRY: Rules = {
    "random_seed": lambda how, seed: keys_of(  # noqa: ARG005
        np.stack([np.zeros(np.shape(seed)), np.asarray(seed).astype(np.uint32)], -1)
    ),
    "random_fold_in": lambda how, keys, numbers: _folded(keys, numbers),  # noqa: ARG005
    "random_wrap": lambda how, words: keys_of(words),  # noqa: ARG005
    "random_unwrap": lambda how, keys: words_of(keys),  # noqa: ARG005
    "random_split": lambda how, keys: split(keys, tuple(how["shape"])),
    "random_bits": _bits,
}
"""What JAX draws, to the bit."""
