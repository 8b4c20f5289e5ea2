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
from tools import equations, noisy_bars, noisy_copies

from inference import EM, BoundEM, Cut, Persistent, TruncatedEM
from inference.files.arviz import container, point_groups
from inference.files.cards import example
from inference.files.catalogue import methods, programs
from inference.reading.anatomy import ProgramError, inspect
from inference.rows import disk
from inference.running.algorithm import Algorithm
from inference.running.contract import follow
from ppl_models import binary_sparse_coding, latent_trait, noisy_or_network

METHODS = {name: method for name, method in methods().items() if issubclass(method, Algorithm)}
STEPS = 3


@cache
def drawn(program):
    """The same rows for every method: to draw them compiles the program. In memory a method that
    gives rows weights pads them to 110; inside jit and on disk they are 103."""
    return example(program, 103, which="small")


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


def run(engine, made, num_steps=STEPS, **saving):
    """The settings of a run and its result, with a missing cell where the method takes that."""
    mask = np.ones(made.values.shape, bool)
    mask[2, 1] = False
    settings = {**made.sizes, "mask": mask}
    try:
        engine.refuse(random.key(0), made.values, **settings)
    except ProgramError:  # it is not for missing cells
        settings = made.sizes
    return settings, engine.run(random.key(0), num_steps, made.values, **saving, **settings)


@cache
def run_of(name):
    """A run of a method as it is, on the last of its programs."""
    program = admitted(name)[-1]
    return run(engine_of(name, program), drawn(program))


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def same(first, second, rtol=2e-3, atol=2e-3):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), first, second)


def widths(jaxpr):
    """The lengths of all axes of all arrays that a traced function makes, inner ones too."""
    made = [x.aval for equation in equations(jaxpr) for x in equation.outvars]
    return {length for x in made for length in getattr(x, "shape", ())}


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


@pytest.mark.parametrize("name", METHODS)
def test_a_method_starts_and_steps(name):
    for program in admitted(name):
        assert_starts_and_steps(name, program)


@pytest.mark.parametrize("name", METHODS)
def test_other_programs_are_refused_before_they_run(name):
    for program in programs().keys() - set(admitted(name)):
        assert_refused(name, program)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_the_contract(name, tmp_path):
    """The last of the programs that it admits is run in full, the first is read from disk: the
    others are stepped by the same code."""
    assert_pure(name, admitted(name)[-1])
    assert_same_on_disk(name, admitted(name)[0], tmp_path)


def assert_refused(name, program):
    """Before the program runs."""
    made = drawn(program)
    with pytest.raises(ProgramError) as refusal:
        engine_of(name, program).init(random.key(0), made.values, **made.sizes)
    assert "fails" not in str(refusal.value), "the program was run before it was looked at"


def assert_starts_and_steps(name, program):
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


def assert_pure(name, program):
    """Steps give the same numbers under jit and vmap, where no rows are padded, with a missing cell
    or none; posteriors and groups have their shapes."""
    made, engine = drawn(program), engine_of(name, program)
    settings, result = run_of(name)
    assert_run(engine, result, made)

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


def assert_run(engine, result, made):
    assert np.isfinite(result.losses).all() and result.losses.shape == (STEPS,)
    assert {x: v.shape for x, v in result.params.items()} == {
        x: np.shape(v) for x, v in made.truth.items()
    }
    if engine.monotone:
        assert (np.diff(result.losses) < 1e-3).all()


def assert_same_on_disk(name, program, folder):
    """A file, read in small chunks, gives the numbers of rows in memory."""
    made = drawn(program)
    engine = engine_of(name, program)
    engine = dataclasses.replace(engine, **on_disk_settings(engine))
    settings, held = run(engine, made)
    assert_run(engine, held, made)
    assert engine.pads == (engine.fill((made.values,), settings) is not None)
    fields = {x.name for x in dataclasses.fields(engine)}
    small = {"chunk_size": 25} if "chunk_size" in fields else {}
    by_chunk = dataclasses.replace(engine, **small)
    file = on_disk(folder, made.values, settings.get("mask"))
    stored = by_chunk.run(random.key(0), STEPS, file, **settings)
    if fields & {"batch_size", "block_size", "em"}:  # rows are added up in the same order
        same(stored.losses, held.losses, rtol=1e-6, atol=0)
        same(stored.params, held.params, rtol=1e-4, atol=1e-5)
    same((stored.params, stored.losses), (held.params, held.losses))
    if small or fields & {"block_size", "em"}:
        assert_small_steps(by_chunk, stored.state, file, settings)


def on_disk_settings(engine):
    """Settings that also matter in memory: of rows on disk nothing is kept from step to step, and
    those that are drawn or learned from together are fewer than all."""
    fields = {x.name for x in dataclasses.fields(engine)}
    other = dict.fromkeys(fields & {"remember", "keep", "keep_states"}, False)
    other |= dict.fromkeys(fields & {"batch_size", "block_size"}, 25)
    return other | ({"em": dataclasses.replace(engine.em, **on_disk_settings(engine.em))}
                    if "em" in fields else {})  # fmt: skip


def on_disk(folder, values, mask=None):
    """The rows in a file, in which a missing cell holds something else."""
    values = values if mask is None else np.where(mask, values, np.roll(values, 1, 0))
    np.save(folder / "rows.npy", values)
    return np.load(folder / "rows.npy", mmap_mode="r")


def my_trait(data, *, num_factors=1):
    """A program that no method was told of."""
    return latent_trait(data, num_factors=num_factors)


PIXELS, BITS = noisy_bars(103, 103), noisy_copies(103, 36, 6)[:103]
# What no method does by default.
SETTINGS = {
    "gradient steps": (
        EM(noisy_or_network, chunk_size=20, gradient_steps=1), BITS, {"layers": (2,)}),
    "cut": (
        TruncatedEM(binary_sparse_coding, chunk_size=16, max_active=1, num_candidates=2, keep=False,
                    cut=Cut(-1, 0)), PIXELS, {"num_causes": 3}),
    "persistent": (
        TruncatedEM(binary_sparse_coding, chunk_size=16, persistent=Persistent(4, 2, rounds=3),
                    keep=False), PIXELS, {"num_causes": 3}),
    "any program": (
        BoundEM(my_trait, chunk_size=20, remember=False, gradient_steps=1, accelerate=False), BITS,
        {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_other_settings_too_give_on_disk_the_numbers_of_memory(tmp_path, name):
    method, data, settings = SETTINGS[name]
    assert method.pads == (method.fill((data,), settings) is not None)
    held = method.run(random.key(2), STEPS, jax.numpy.asarray(data), **settings)
    file = on_disk(tmp_path, data)
    stored = method.run(random.key(2), STEPS, file, **settings)
    same(stored.losses, held.losses, rtol=1e-6, atol=0)
    same(stored.params, held.params, rtol=1e-4, atol=1e-5)
    assert_small_steps(method, stored.state, file, settings)


RESUME = """
import json, sys
import jax
sys.path[:0] = json.loads(sys.argv[1])
from test_table import METHODS, admitted, drawn, engine_of, run
losses = {}
for name in METHODS:
    program = admitted(name)[-1]
    _, result = run(engine_of(name, program), drawn(program), checkpoint=f"{sys.argv[2]}/{name}")
    losses[name] = [x.hex() for x in map(float, result.losses)]
    jax.clear_caches()
print(json.dumps(losses))
"""


def test_a_second_process_goes_on_from_the_checkpoint_of_every_method(request, tmp_path):
    expected = {}
    for name in METHODS:
        program = admitted(name)[-1]
        run(engine_of(name, program), drawn(program), 1, checkpoint=tmp_path / name)
        _, result = run_of(name)
        expected[name] = [x.hex() for x in map(float, result.losses)]
        jax.clear_caches()
    here = request.path.parent
    folders = json.dumps([str(here), str(here.parent / "support")])
    command = [sys.executable, "-c", RESUME, folders, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    assert json.loads(found.stdout.splitlines()[-1]) == expected
