"""Every field of every method refuses what it is not for, at construction and in one line."""

import inspect
import os

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import inference
from inference import EM, Algorithm, CheckpointError, Search
from ppl_models import bernoulli_mixture

METHODS = [
    kind for kind in (getattr(inference, name) for name in inference.public.__all__)
    if inspect.isclass(kind) and issubclass(kind, Algorithm) and not inspect.isabstract(kind)
]  # fmt: skip
WRONG = (object(), 10**20, float("nan"), -1, "none of these", np.zeros((2, 2)))


@pytest.mark.parametrize("kind", [*METHODS, Search])
def test_no_field_takes_what_it_is_not_for(kind):
    first, *names = inspect.signature(kind).parameters
    given = (bernoulli_mixture,) if kind is not Search else ()
    for name in names if given else [first, *names]:
        for value in WRONG:
            if name == "plate" and isinstance(value, str):
                continue  # names are looked for in the program
            with pytest.raises(ValueError, match=f"^{name} must be .*found") as error:
                kind(*given, **{name: value})
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["checkpoint.npz", "checkpoint.lock"])
def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name} is no regular file"):
        EM(bernoulli_mixture).run(
            random.key(0), 2, jnp.eye(3), num_components=2, checkpoint=tmp_path
        )
