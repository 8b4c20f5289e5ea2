"""The contract: every method on every program. It keeps to all of it where `admits` says that it
applies, and refuses where not."""

import dataclasses
import json
import subprocess
import sys
from functools import cache

import jax
import numpy as np
import pytest
from jax import random

from inference.reading.anatomy import ProgramError, inspect
from inference.running.algorithm import Algorithm
from inference.running.contract import follow
from inference.studies.arviz import container
from inference.studies.cards import example
from inference.studies.catalogue import methods, programs
from inference.studies.netcdf import point_groups

METHODS = {name: method for name, method in methods().items() if issubclass(method, Algorithm)}
STEPS = 3


@cache
def drawn(program):
    """The same rows for every method: to draw them compiles the program."""
    return example(program, 24, which="small")


@cache
def described(program):
    made = drawn(program)
    return inspect(programs()[program], (made.values,), made.sizes)


def admitted(name):
    return [x for x in programs() if METHODS[name].admits(described(x)) is None]


def engine_of(name, program):
    return METHODS[name].of(programs()[program], described(program))


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def same(first, second, rtol=1e-4, atol=1e-4):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), first, second)


@cache
def plain(name, program):
    """A run as users have it."""
    made = drawn(program)
    return engine_of(name, program).run(random.key(0), STEPS, made.values, **made.sizes)


PAIRS = [(name, program) for name in METHODS for program in admitted(name)]
OTHERS = [(name, x) for name in METHODS for x in programs() if (name, x) not in PAIRS]
each = pytest.mark.parametrize(("name", "program"), PAIRS)


@pytest.mark.parametrize(("name", "program"), OTHERS)
def test_others_are_refused_before_the_program_runs(name, program):
    made = drawn(program)
    with pytest.raises(ProgramError) as refusal:
        engine_of(name, program).init(random.key(0), made.values, **made.sizes)
    assert "fails" not in str(refusal.value), "the program was run before it was looked at"


@each
def test_steps_are_pure_under_jit_and_vmap(name, program):
    """Two keys at once; the first gives what `run` gives."""
    made, engine = drawn(program), engine_of(name, program)

    @jax.jit
    @jax.vmap
    def whole(key):
        state = engine.init(key, made.values, **made.sizes)
        state, losses = follow(engine, state, STEPS, made.values, **made.sizes)
        return engine.get_params(state), losses

    result = plain(name, program)
    params, losses = jax.tree.map(lambda x: x[0], whole(random.split(random.key(0), 2)))
    assert {x: v.shape for x, v in params.items()} == {
        x: np.shape(v) for x, v in made.truth.items()
    }
    assert losses.shape == result.losses.shape == (STEPS,)
    assert np.isfinite(losses).all()
    key = random.split(random.key(0), 2)[0]
    again = engine.run(key, STEPS, made.values, **made.sizes)
    same((params, losses), (again.params, again.losses))
    if engine.monotone:
        assert (np.diff(result.losses) < 1e-3).all()


@each
def test_a_step_gives_a_like_state_and_a_search_like_parameters(name, program):
    made, engine = drawn(program), engine_of(name, program)
    data, sizes, key = made.values, made.sizes, random.key(0)
    state = jax.eval_shape(lambda key: engine.init(key, data, **sizes), key)
    after, loss = jax.eval_shape(lambda state: engine.update(state, data, **sizes), state)
    assert loss.shape == () and shapes(after) == shapes(state)
    if engine.search is not None:
        params = jax.eval_shape(engine.get_params, state)
        start = jax.eval_shape(lambda key: engine.propose(key, data, **sizes), key)
        other = jax.eval_shape(lambda p: engine.vary(key, p, data, **sizes), params)
        assert shapes(start) == shapes(other) == shapes(params)


@each
def test_a_mask_is_used_or_refused(name, program):
    """Where a cell is missing, its value does not matter."""
    made, engine = drawn(program), engine_of(name, program)
    mask = np.ones(made.values.shape, bool)
    mask[2, 1] = False
    tables = [np.where(mask, made.values, value) for value in (0, 1)]
    try:
        runs = [engine.run(random.key(0), 2, x, mask=mask, **made.sizes) for x in tables]
    except (ProgramError, ValueError) as refusal:
        assert "mask" in str(refusal) or "missing" in str(refusal)
        return
    same(runs[0].losses, runs[1].losses, rtol=0, atol=0)


@each
def test_neither_the_size_of_a_chunk_nor_a_file_matters(name, program, tmp_path):
    made, engine = drawn(program), engine_of(name, program)
    result = plain(name, program)
    if "chunk_size" in {x.name for x in dataclasses.fields(engine)}:
        engine = dataclasses.replace(engine, chunk_size=7)
    chunked = engine.run(random.key(0), STEPS, made.values, **made.sizes)
    same((result.params, result.losses), (chunked.params, chunked.losses), rtol=2e-3, atol=2e-3)
    np.save(tmp_path / "rows.npy", made.values)
    file = np.load(tmp_path / "rows.npy", mmap_mode="r")
    try:
        stored = engine.run(random.key(0), STEPS, file, **made.sizes)
    except ValueError as refusal:
        assert "memory" in str(refusal) or "disk" in str(refusal)
        return
    same((stored.params, stored.losses), (chunked.params, chunked.losses))


@each
def test_posteriors_and_groups_have_their_shapes(name, program):
    made, engine, result = drawn(program), engine_of(name, program), plain(name, program)
    groups = point_groups(programs()[program], result.params, result.losses)
    tree = container({x: group.dataset() for x, group in groups.items()})
    assert tree["optimization"]["loss"].shape == (STEPS,)
    assert set(tree["point_estimate"].data_vars) == set(made.truth)
    if hasattr(engine, "posterior"):
        posterior = engine.posterior(result.params, made.values, **made.sizes)
        assert all(len(x) == len(made.values) for x in jax.tree.leaves(posterior.mean))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(posterior.mean))


RESUME = """
import json, sys
from jax import random
sys.path.insert(0, sys.argv[1])
from test_table import STEPS, admitted, drawn, engine_of
losses = {}
for program in admitted(sys.argv[2]):
    made, folder = drawn(program), f"{sys.argv[3]}/{program}"
    engine = engine_of(sys.argv[2], program)
    result = engine.run(random.key(0), STEPS, made.values, checkpoint=folder, **made.sizes)
    losses[program] = [x.hex() for x in map(float, result.losses)]
print(json.dumps(losses))
"""


@pytest.mark.parametrize("name", METHODS)
def test_a_second_process_goes_on_from_a_checkpoint(name, request, tmp_path):
    for program in admitted(name):
        made, folder = drawn(program), tmp_path / program
        engine = engine_of(name, program)
        engine.run(random.key(0), 1, made.values, checkpoint=folder, **made.sizes)
    command = [sys.executable, "-c", RESUME, str(request.path.parent), name, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    for program, losses in json.loads(found.stdout.splitlines()[-1]).items():
        wanted = plain(name, program).losses
        same(np.array([float.fromhex(x) for x in losses]), wanted, rtol=0, atol=0)
