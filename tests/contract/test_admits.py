"""Every method on every program: it applies where `admits` says so, and refuses where not."""

from functools import cache

import jax
import numpy as np
import pytest
from jax import random

from inference.reading.anatomy import ProgramError, inspect
from inference.running.algorithm import Algorithm
from inference.studies.cards import example
from inference.studies.catalogue import methods, programs

METHODS = {name: method for name, method in methods().items() if issubclass(method, Algorithm)}


@cache
def drawn(program):
    """The same rows for every method: to draw them compiles the program."""
    return example(program, 13, which="small")


@cache
def described(program):
    made = drawn(program)
    return inspect(programs()[program], (made.values,), made.sizes)


@cache
def first_and_last(name):
    """Of the programs that a method admits: others are stepped by the same code."""
    admitted = [x for x in programs() if METHODS[name].admits(described(x)) is None]
    return {admitted[0], admitted[-1]}


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@pytest.mark.parametrize("program", programs())
@pytest.mark.parametrize("name", METHODS)
def test_admits_is_right(name, program):
    """Traced, not compiled: every method starts on every program it admits with parameters of the
    program's shapes; on the first and last of them from three keys at once, and a step gives a like
    state."""
    model, method = programs()[program], METHODS[name]
    made = drawn(program)
    data, sizes = made.values, made.sizes
    anatomy = described(program)
    reason = method.admits(anatomy)
    engine = method.of(model, anatomy)
    if reason is not None:
        with pytest.raises(ProgramError) as refusal:
            engine.init(random.key(0), data, **sizes)
        assert "fails" not in str(refusal.value), "the program was run before it was looked at"
        return

    if hasattr(engine, "check"):  # of rows that are known: in a trace they are not
        engine.check(engine._open((data,), sizes))

    def begin(key):
        state = engine.init(key, data, **sizes)
        return state, engine.get_params(state)

    several = program in first_and_last(name)
    keys = random.split(random.key(0), 3) if several else random.key(0)
    state, params = jax.eval_shape(jax.vmap(begin) if several else begin, keys)
    if several:
        params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), params)
    assert {site: x.shape for site, x in params.items()} == {
        site: np.shape(x) for site, x in made.truth.items()
    }
    if not several:
        return
    step = jax.vmap(lambda state: engine.update(state, data, **sizes))
    after, loss = jax.eval_shape(step, state)
    assert loss.shape == (3,) and shapes(after) == shapes(state)
    if engine.search is not None:  # what a search starts from, and what it tries instead
        start = jax.eval_shape(lambda key: engine.propose(key, data, **sizes), random.key(0))
        other = jax.eval_shape(lambda p: engine.vary(random.key(0), p, data, **sizes), params)
        assert shapes(start) == shapes(other) == shapes(params)
    if hasattr(engine, "posterior"):
        posterior = jax.eval_shape(lambda x: engine.posterior(x, data, **sizes), params)
        assert all(x.shape[0] == len(data) for x in jax.tree.leaves(posterior.mean))
