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

from inference.files.arviz import container, point_groups
from inference.files.cards import example
from inference.files.catalogue import methods, programs
from inference.reading.anatomy import ProgramError, inspect
from inference.rows import disk
from inference.running.algorithm import Algorithm
from inference.running.contract import follow

METHODS = {name: method for name, method in methods().items() if issubclass(method, Algorithm)}
STEPS = 3


@cache
def drawn(program):
    """The same rows for every method: to draw them compiles the program."""
    return example(program, 60, which="small")


@cache
def described(program):
    made = drawn(program)
    return inspect(programs()[program], (made.values,), made.sizes)


def admitted(name):
    return [x for x in programs() if METHODS[name].admits(described(x)) is None]


def engine_of(name, program):
    engine = METHODS[name].of(programs()[program], described(program))
    if engine.search is not None and engine.search.least_steps <= STEPS:
        return dataclasses.replace(engine, search=None)  # as others have it in so few steps
    return engine


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def same(first, second, rtol=2e-3, atol=2e-3):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), first, second)


def widths(jaxpr):
    """The lengths of all axes of all arrays that a traced function makes, inner ones too."""
    for equation in jaxpr.eqns:
        yield from (length for x in equation.outvars for length in getattr(x.aval, "shape", ()))
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from widths(inner)


def unread(jaxpr, get_params, state):
    """The leaves of a state that neither its step reads nor its parameters are made of."""
    shown = jax.make_jaxpr(get_params)(state).jaxpr
    *after, loss = jaxpr.outvars
    read = needed(jaxpr, [loss, *(b for a, b in zip(jaxpr.invars, after, strict=True) if a != b)])
    used = needed(shown, shown.outvars)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    variables = zip(paths, jaxpr.invars, shown.invars, strict=True)
    return {path for path, x, y in variables if x not in read and y not in used}


def needed(jaxpr, results):
    """The variables that some of its variables are computed from."""
    variables = {x for x in results if not hasattr(x, "val")}
    for equation in reversed(jaxpr.eqns):
        if variables.intersection(equation.outvars):
            variables.update(x for x in equation.invars if not hasattr(x, "val"))
    return variables


def assert_small_steps(engine, state, file, settings):
    """Nothing that a step makes is as long as the file, and a state is what the next step needs."""
    rows = disk.as_stored(file)
    step = jax.make_jaxpr(lambda state: engine.update(state, rows, **settings))(state)
    assert len(file) not in widths(step.jaxpr)
    # EM over states has a key, whether or not it draws any; the gain tells whether a run may stop.
    assert unread(step.jaxpr, engine.get_params, state) <= {".rng_key", ".trail.gain"}


@pytest.fixture(autouse=True)
def compiled():
    """Free what each test compiled: all of it exceeds the memory maps of a process."""
    yield
    jax.clear_caches()


PAIRS = [(name, program) for name in METHODS for program in admitted(name)]
OTHERS = [(name, x) for name in METHODS for x in programs() if (name, x) not in PAIRS]
# Of the programs that a method admits, the first and the last: others are stepped by the same code.
RUN = [pair for pair in PAIRS if pair[1] in (admitted(pair[0])[0], admitted(pair[0])[-1])]


@pytest.mark.parametrize(("name", "program"), OTHERS)
def test_others_are_refused_before_the_program_runs(name, program):
    made = drawn(program)
    with pytest.raises(ProgramError) as refusal:
        engine_of(name, program).init(random.key(0), made.values, **made.sizes)
    assert "fails" not in str(refusal.value), "the program was run before it was looked at"


@pytest.mark.parametrize(("name", "program"), PAIRS)
def test_a_method_starts_and_steps(name, program):
    """Traced, not compiled: parameters have the program's shapes, a step gives a like state."""
    made, engine = drawn(program), engine_of(name, program)
    if hasattr(engine, "check"):  # of rows that are known: in a trace they are not
        engine.check(engine._open((made.values,), made.sizes))
    state = jax.eval_shape(lambda: engine.init(random.key(0), made.values, **made.sizes))
    params = jax.eval_shape(engine.get_params, state)
    assert {x: v.shape for x, v in params.items()} == {
        x: np.shape(v) for x, v in made.truth.items()
    }
    step = lambda state: engine.update(state, made.values, **made.sizes)  # noqa: E731
    after, loss = jax.eval_shape(step, state)
    assert loss.shape == () and shapes(after) == shapes(state)


@pytest.mark.parametrize(("name", "program"), RUN)
def test_a_method_keeps_the_contract(name, program, tmp_path):
    """Its steps are pure, under jit and vmap too; a missing cell, the size of a chunk and a file on
    disk change no number; posteriors and groups have their shapes."""
    made, engine = drawn(program), engine_of(name, program)
    mask = np.ones(made.values.shape, bool)
    mask[2, 1] = False
    settings = {**made.sizes, "mask": mask}
    try:
        result = engine.run(random.key(0), STEPS, made.values, **settings)
    except ProgramError:  # it is not for missing cells
        mask, settings = np.ones_like(mask), made.sizes
        result = engine.run(random.key(0), STEPS, made.values, **settings)
    assert np.isfinite(result.losses).all() and result.losses.shape == (STEPS,)
    assert {x: v.shape for x, v in result.params.items()} == {
        x: np.shape(v) for x, v in made.truth.items()
    }
    if engine.monotone:
        assert (np.diff(result.losses) < 1e-3).all()

    @jax.jit
    @jax.vmap
    def whole(key):
        state = engine.init(key, made.values, **settings)
        after, losses = follow(engine, state, STEPS, made.values, **settings)
        assert shapes(after) == shapes(state)
        return engine.get_params(after), losses

    keys = jax.numpy.stack([random.key(0), random.key(1)])
    params, losses = jax.tree.map(lambda x: x[0], whole(keys))
    same(losses, result.losses)
    if type(engine).finish is Algorithm.finish:  # nothing else follows the steps
        same(params, result.params)

    np.save(tmp_path / "rows.npy", np.where(mask, made.values, np.roll(made.values, 1, 0)))
    file = np.load(tmp_path / "rows.npy", mmap_mode="r")
    fields = {x.name for x in dataclasses.fields(engine)}
    forgetful = dict.fromkeys(fields & {"remember", "keep", "keep_states"}, False)
    if forgetful:  # of rows on disk nothing is kept from step to step
        engine = dataclasses.replace(engine, **forgetful)
        result = engine.run(random.key(0), STEPS, made.values, **settings)
    small = {"chunk_size": 25} if "chunk_size" in fields else {}
    by_chunk = dataclasses.replace(engine, **small)
    stored = by_chunk.run(random.key(0), STEPS, file, **settings)
    same((stored.params, stored.losses), (result.params, result.losses))
    if small and "batch_size" not in fields:  # others read blocks of a size of their own
        assert_small_steps(by_chunk, stored.state, file, settings)

    if engine.search is not None:
        rows = made.values
        start = jax.eval_shape(lambda key: engine.propose(key, rows, **settings), random.key(0))
        vary = lambda p: engine.vary(random.key(0), p, rows, **settings)  # noqa: E731
        assert shapes(start) == shapes(jax.eval_shape(vary, start)) == shapes(result.params)
    if hasattr(engine, "posterior"):
        posterior = engine.posterior(result.params, made.values, **made.sizes)
        assert all(len(x) == len(made.values) for x in jax.tree.leaves(posterior.mean))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(posterior.mean))
    groups = point_groups(programs()[program], result.params, result.losses)
    tree = container(groups)
    assert tree["optimization"]["loss"].shape == (STEPS,)
    assert set(tree["point_estimate"].data_vars) == set(made.truth)


RESUME = """
import json, sys
from jax import random
sys.path.insert(0, sys.argv[1])
from test_table import STEPS, admitted, drawn, engine_of
losses = {}
for program in admitted(sys.argv[2])[:1]:
    made, folder = drawn(program), f"{sys.argv[3]}/{program}"
    engine = engine_of(sys.argv[2], program)
    result = engine.run(random.key(0), STEPS, made.values, checkpoint=folder, **made.sizes)
    losses[program] = [x.hex() for x in map(float, result.losses)]
print(json.dumps(losses))
"""


@pytest.mark.parametrize("name", METHODS)
def test_a_second_process_goes_on_from_a_checkpoint(name, request, tmp_path):
    for program in admitted(name)[:1]:
        made, folder = drawn(program), tmp_path / program
        engine = engine_of(name, program)
        engine.run(random.key(0), 1, made.values, checkpoint=folder, **made.sizes)
    command = [sys.executable, "-c", RESUME, str(request.path.parent), name, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    for program, losses in json.loads(found.stdout.splitlines()[-1]).items():
        made = drawn(program)
        wanted = engine_of(name, program).run(random.key(0), STEPS, made.values, **made.sizes)
        same(np.array([float.fromhex(x) for x in losses]), wanted.losses, rtol=0, atol=0)
