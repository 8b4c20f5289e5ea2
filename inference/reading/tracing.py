"""Runs of a program: in which nothing is computed, and in which handlers outside meet its sites."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, random
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer.initialization import init_to_uniform
from numpyro.ops.provenance import eval_provenance

from latentbits import models

from ..rows.disk import shape_of, stored
from ..types import Arguments, Params


class ProgramError(ValueError):
    """A program that the reading at hand cannot be applied to; the message says what to change.

    >>> from latentbits.inference.reading.anatomy import inspect
    >>> try:
    ...     inspect(lambda data: None, (jnp.zeros((7, 16)),))
    ... except ProgramError as error:
    ...     print(str(error).split(":")[0])
    the program has no numpyro.plate
    """


REAL = frozenset({"Normal", "HalfNormal", "Beta", "Gamma", "Dirichlet", "Exponential", "Uniform"})
"""Distributions whose draws are known to be of JAX's own type of real numbers."""


def improper(site: dict[str, Any]) -> Array | None:
    """A value of a site that nothing can be drawn from, near 0 on the line it is mapped to."""
    unknown = site["type"] == "sample" and site["value"] is None
    if unknown and isinstance(innermost(site["fn"]), dist.ImproperUniform):
        key = site["kwargs"]["rng_key"]  # none where no handler within has given it one
        how = {**site["kwargs"], "rng_key": random.key(0) if key is None else key}
        return init_to_uniform({**site, "kwargs": how}, radius=1)
    return None


def undrawn(site: dict[str, Any]) -> Array | None:
    """A value of the shape of a draw: to trace a generator takes longer than all else."""
    unknown = site["type"] == "sample" and site["value"] is None
    if unknown and type(innermost(site["fn"])).__name__ in REAL:
        return jnp.zeros(site["fn"].shape(site["kwargs"]["sample_shape"]))
    return improper(site)


def run_abstractly(
    model: Callable, args: tuple, kwargs: dict, read: Callable[[dict[str, dict]], Any]
) -> Any:
    """What `read` makes of the trace of one abstract run, hidden from every handler outside.

    The trace holds tracers of a run that is over as soon as this returns: what `read` gives back
    must hold none.
    """
    collected = []
    leaves, tree = jax.tree.flatten((args, kwargs))
    unread = [shape_of(x) if stored(x) else None for x in leaves]

    def run(shapes: list) -> None:
        whole = [x if shape is None else shape for x, shape in zip(leaves, shapes, strict=True)]
        args, kwargs = jax.tree.unflatten(tree, whole)
        filled, at_zero = handlers.substitute(substitute_fn=undrawn), handlers.seed(rng_seed=0)
        with handlers.block(), handlers.trace() as trace, filled, at_zero, explained():
            model(*args, **kwargs)
        collected.append(read(trace))

    jax.eval_shape(run, unread)
    return collected[0]


def drawn_shapes(trace: dict[str, dict]) -> dict[str, jax.ShapeDtypeStruct]:
    """Of the sites that a run draws."""
    sampled = (x for x in trace.values() if x["type"] == "sample")
    values = {x["name"]: x["value"] for x in sampled if not x["is_observed"]}
    shape = lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))  # noqa: E731
    return {name: shape(value) for name, value in values.items()}


def unseen(read: Callable[[Any], Any], leaves: Any) -> Any:
    """`read(leaves)` where no value can be read: stand-ins are no weights, and no counts.

    NumPyro refuses a scale below zero where it sees one.
    """
    collected = []
    jax.eval_shape(lambda leaves: collected.append(read(leaves)), leaves)
    return collected[0]


def trace_shapes(model: Callable, args: tuple, kwargs: dict) -> dict[str, dict]:
    """The trace of one abstract run, of which only shapes may be read; not inside `jit`."""
    return run_abstractly(model, args, kwargs, dict)


@contextmanager
def explained(doing: str = "") -> Iterator[None]:
    """Say of an error inside a program that it is the program's, and where in its file."""
    try:
        yield
    except Exception as error:
        places = extract_tb(error.__traceback__)
        ours = [Path(package).parent for package in (models.__file__, __file__)]
        written = Path(places[-1].filename).parent in ours and isinstance(error, ValueError)
        if written or isinstance(error, ProgramError):  # for people already
            raise
        libraries = {"jax", "jaxlib", "numpyro", "numpy"}
        own = [x for x in places if not libraries & set(Path(x.filename).parts)]
        own = [x for x in own if Path(x.filename).parent != ours[1]]
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        if isinstance(error, jax.errors.TracerBoolConversionError):
            raise ProgramError(
                f"the program asks in Python whether an array is true{where}, and takes all its "
                "values at once: write jnp.where(z == 1, a, b) for `a if z == 1 else b`"
            ) from error
        if isinstance(error, jax.errors.JAXTypeError):
            raise ProgramError(
                f"the program asks for the value of an array that has none when it is compiled"
                f"{where}: rows are read some at a time, and parameters change; pass a size as an "
                "argument of its own (num_classes=4), an array of settings as one of NumPy's, and "
                "write jnp for np elsewhere"
            ) from error
        # The first line says what; JAX writes a page below it.
        words = f": {' '.join(str(error).split(chr(10))[0].split())[:300]}" if str(error) else ""
        raise ProgramError(
            f"the program fails{doing and ' '}{doing}: {type(error).__name__}{words}{where}"
        ) from error


def trace_of(
    model: Callable, arguments: Arguments, given: Mapping[str, Any] | None = None
) -> dict[str, dict]:
    """The trace of a run with some sites given, hidden from every handler outside.

    The others are drawn: from a key of the caller's where the program has one (`handlers.seed`).
    """
    args, kwargs = arguments
    program = handlers.substitute(model, data=given or {})
    with explained(), handlers.block(), handlers.seed(rng_seed=0):
        return handlers.trace(program).get_trace(*args, **kwargs)


def densities(trace: dict[str, dict], names: Iterable[str]) -> dict[str, Any]:
    """The log probability of each of these sites, or its value if it is no sample."""
    sites = {name: trace[name] for name in names}
    return {  # NumPyro checks NumPy's numbers by NumPy, which bounds that are traced do not bear
        name: x["fn"].log_prob(jnp.asarray(x["value"])) if x["type"] == "sample" else x["value"]
        for name, x in sites.items()
    }


def origins(tree: Any) -> frozenset:
    """What any leaf of it depends on, where provenance is a set of each."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, frozenset))
    return frozenset().union(*leaves)


def dependence(
    model: Callable, arguments: Arguments, trace: dict[str, dict], latents: Iterable[str]
) -> dict[str, frozenset[str]]:
    """Site -> the latents that its log probability depends on, or its value if it is no sample.

    :param trace: that of an abstract run.
    """
    kinds = ("sample", "deterministic")
    wanted = [x["name"] for x in trace.values() if x["type"] in kinds]
    # What is random and not a latent here is held fixed: its value is given, not a function.
    fixed = {
        x["name"]: x["value"] for x in trace.values()
        if x["type"] in ("sample", "param") and not x.get("is_observed")
    }  # fmt: skip

    def run(**values: Array) -> dict[str, Array]:
        return densities(trace_of(model, arguments, {**fixed, **values}), wanted)

    start = {x: jnp.zeros_like(trace[x]["value"]) for x in latents}
    depends = eval_provenance(run, **start)
    return {name: origins(depends[name]) for name in wanted}


def unknowns(sites: Iterable[dict], latents: Container[str]) -> tuple[str, ...]:
    """The parameters and the unobserved samples, but for these latents."""
    return tuple(
        x["name"] for x in sites
        if x["type"] == "param"
        or (x["type"] == "sample" and not x["is_observed"] and x["name"] not in latents)
    )  # fmt: skip


def at_place(site: dict[str, Any], place: Callable[[tuple], Array]) -> Array | None:
    """The value of a continuous site at a place on the real line that it is mapped to.

    :param place: of the shape that it is there.
    """
    if site["type"] != "sample" or site["value"] is not None or site["fn"].support.is_discrete:
        return None
    with suppress(NotImplementedError):  # it is mapped to no line
        transform = biject_to(site["fn"].support)
        return transform(place(transform.inverse_shape(site["fn"].shape())))
    return None


def somewhere(model: Callable, names: Iterable[str], arguments: Arguments) -> Params:
    """Values of sites at zero on the real line that each is mapped to, in place of draws, which are
    much to compile."""
    middle = partial(at_place, place=jnp.zeros)
    program = handlers.substitute(handlers.seed(model, 0), substitute_fn=middle)
    trace = trace_of(program, arguments)
    return {name: jnp.asarray(trace[name]["value"], float) for name in names}


def innermost(fn: Any) -> Any:
    """The distribution that was masked, expanded, or made an event of several columns.

    >>> type(innermost(dist.LogNormal(jnp.zeros(3)).mask(False).to_event(1))).__name__
    'LogNormal'
    """
    while isinstance(fn, dist.MaskedDistribution | dist.ExpandedDistribution | dist.Independent):
        fn = fn.base_dist
    return fn


def is_masked(fn: Any) -> bool:
    """Whether there is a mask among what a distribution is wrapped in.

    >>> is_masked(dist.Normal(jnp.zeros(3)).mask(False).to_event(1)), is_masked(dist.Normal())
    (True, False)
    """
    wrapped = isinstance(fn, dist.ExpandedDistribution | dist.Independent)
    return is_masked(fn.base_dist) if wrapped else isinstance(fn, dist.MaskedDistribution)


def is_latent(site: dict[str, Any]) -> bool:
    """Whether a site is discrete and not observed."""
    return site["type"] == "sample" and not site["is_observed"] and site["fn"].support.is_discrete


def each_value(support: Any) -> Any:
    """The constraint on a single value of a vector."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def outside(
    model: Callable, within: set[str], args: tuple, kwargs: dict, kinds: tuple[str, ...] = ()
) -> tuple[dict[str, dict], Params, Any]:
    """The trace of one run in which handlers outside meet all but some sites; the values of the
    sites and plates that they met; and what the program returns.

    What is hidden is drawn by a key of its own, since there may be none outside.

    :param within: the sites that are hidden.
    :param kinds: of sites that are hidden too.
    """

    def hidden(site: dict[str, Any]) -> bool:
        return site["type"] in kinds or site.get("name") in within

    key = numpyro.prng_key()
    inside = handlers.seed(model, random.key(0) if key is None else key)
    with handlers.block(hide_fn=hidden), handlers.trace() as trace:
        returned = inside(*args, **kwargs)
    fixed = ("sample", "param", "plate")
    shown = [site for site in trace.values() if site["type"] in fixed and not hidden(site)]
    return trace, {site["name"]: site["value"] for site in shown}, returned


def leave(name: str, log_factor: Array, scale: Any, shown: bool = True) -> None:
    """A factor in place of what was summed, under a name, scaled as that was.

    :param shown: as an observed site, not as a factor of the program's own.
    """
    unit = dist.Unit(log_factor)
    with handlers.scale(scale=1.0 if scale is None else scale):
        numpyro.sample(name, unit, obs=unit.sample(None), infer={"is_auxiliary": not shown})
