"""What a program consists of: its parameters, its data plate, and the latents of one datum.

Every reading asks the same questions of a program before it touches a number: which plate holds the
data, which sites inside it are unobserved, how many values each of them can take, which sites are
parameters. `inspect` answers them from one abstract run (shapes only, nothing is computed), and
refuses, by name, a program that no reading can handle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints

from ..types import Arguments
from .tracing import (
    ProgramError,
    dependence,
    each_value,
    innermost,
    is_latent,
    run_abstractly,
)

MOST_LATENTS = 100_000
"""Of one datum: beyond that nothing here can be held."""
MOST_NUMBERS = 1 << 31
"""Of one parameter."""


class ChainError(ProgramError):
    """The latents of a program are those of a scan, or meet beyond their rows: rows do not stand
    for themselves."""


class GraphError(ChainError):
    """Discrete latents of several plates, or of none: they are summed as a graph."""


class Latent(NamedTuple):
    """An unobserved site of the data plate, for `num_data` rows."""

    name: str
    shape: tuple[int, ...]  # batch and event axes, the data axis among them
    batch_ndim: int
    axis: int  # position of the data axis in `shape`
    num_values: int | None  # 2 for a bit, K for a category, None if continuous
    odd: str | None = None  # why neither a table of states nor the real line holds it
    kind: str = ""  # class of its distribution, unwrapped
    lowest: int = 0  # its least value, where these are listed

    @property
    def binary(self) -> bool:
        return self.num_values == 2 and self.lowest == 0

    @property
    def datum_shape(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def size(self) -> int:
        return math.prod(self.datum_shape)

    def by_value(self, table: Array) -> Array:
        """Numbers of each value, (num_data, size, num_values), in its shape and one more axis."""
        return jnp.moveaxis(table.reshape(len(table), *self.datum_shape, -1), 0, self.axis)


class Anatomy(NamedTuple):
    """The sites of a program and how they lie about its data plate.

    >>> from latentbits.models import latent_trait
    >>> parts = inspect(latent_trait, (jnp.zeros((7, 16)),))
    >>> parts.names, parts.observed, parts.likelihoods, parts.binary
    (('factors',), ('observed',), ('BernoulliLogits',), False)
    """

    plate: str
    plate_dim: int  # negative, as NumPyro counts
    num_data: int
    nesting: int  # deepest plate: the candidate axis stands to the left of all
    latents: tuple[Latent, ...]
    observed: tuple[str, ...]  # observed sites inside the plate
    parameters: tuple[str, ...]  # unobserved sites outside the plate
    likelihoods: tuple[str, ...] = ()  # class of each observed site's distribution, unwrapped
    outside: tuple[str, ...] = ()  # observed sites and factors outside the plate
    meeting: tuple[tuple[str, tuple[str, ...]], ...] = ()  # site outside -> latents it depends on
    crossed: bool = False  # whether rows read latents of others, or misread an axis of states
    drawn: bool = False  # whether the plate draws its rows (subsample_size)
    weighted: bool = False  # whether rows are scaled (`handlers.scale`): they count so many times
    shapes: tuple[tuple[int, ...], ...] = ()  # of the parameters

    def check_observed(self) -> None:
        """Refuse a program that was passed no data."""
        if not self.observed:
            raise ProgramError(
                f"nothing is observed inside the plate {self.plate!r}: pass the data (obs=...)"
            )

    @property
    def why_not_once(self) -> str | None:
        """Why a method that counts every row once does not apply: rows have weights."""
        if not self.weighted:
            return None
        return (
            f"the rows of the plate {self.plate!r} are scaled (handlers.scale), and this method "
            "counts every row once; EM, QuadratureEM, TruncatedEM, ExactGradient and "
            "NUTS(marginal(model)) respect the weights of rows"
        )

    def check_unweighted(self) -> None:
        """Refuse weights of rows, for a method that counts each of them once."""
        if self.why_not_once is not None:
            raise ProgramError(self.why_not_once)

    def check_rows_are_all(self) -> None:
        """Refuse a program that says more of its parameters than its rows do."""
        if self.outside:
            raise ProgramError(
                f"site {self.outside[0]!r} is observed or a factor outside the plate "
                f"{self.plate!r}, and this method learns from the rows of the plate alone: it "
                "would be ignored; EM and TruncatedEM (without m_step=), NUTS(marginal(model)) and "
                "SVI count it"
            )

    def check_rows_are_apart(self) -> None:
        """Refuse a program in which the latents of several rows meet."""
        for site, on in self.meeting:
            mine = [name for name in on if name in self.names]
            if mine:
                raise ChainError(
                    f"site {site!r} is outside the plate {self.plate!r} and depends on its latents "
                    f"{mine}, and this reads every row for itself: put the site inside the plate "
                    "if each row has a term of its own; else NUTS(marginal(model)) sums discrete "
                    "latents that meet and samples continuous ones, and LatentGibbs samples "
                    "discrete ones"
                )

        if self.crossed:
            raise ChainError(
                f"a row of the plate {self.plate!r} depends on latents {list(self.names)} of other "
                "rows (z[parent]), or an index takes an axis of states for that of the rows "
                "(z[row]; write z[..., row]), or the plate does not follow the rows of the data "
                "(visits × sites): EM(model) and NUTS(marginal(model)) sum discrete "
                "latents that meet, and LatentGibbs samples them"
            )

    @property
    def num_bits(self) -> int:
        return sum(latent.size for latent in self.latents)

    @property
    def num_values(self) -> tuple[int, ...]:
        """How many values each latent of a datum has, 0 where that is not known: (num_bits,)."""
        return tuple(x.num_values or 0 for x in self.latents for _ in range(x.size))

    @property
    def num_states(self) -> int:
        """The joint states of the discrete latents of a datum."""
        return math.prod((x.num_values or 1) ** x.size for x in self.latents)

    @property
    def lowest(self) -> np.ndarray:
        """The least value of each latent of a datum, (num_bits,)."""
        return np.array([x.lowest for x in self.latents for _ in range(x.size)], int)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(latent.name for latent in self.latents)

    @property
    def discrete(self) -> Anatomy:
        """The same program, of whose latents only the discrete ones are read."""
        return self._replace(latents=tuple(x for x in self.latents if x.num_values is not None))

    def with_rows(self, num_data: int) -> Anatomy:
        """The same program on another number of rows."""

        def resize(latent: Latent) -> Latent:
            shape = list(latent.shape)
            shape[latent.axis] = num_data
            return latent._replace(shape=tuple(shape))

        return self._replace(num_data=num_data, latents=tuple(map(resize, self.latents)))

    @property
    def binary(self) -> bool:
        return bool(self.latents) and all(latent.binary for latent in self.latents)

    @property
    def mixed(self) -> bool:
        """Whether a datum has discrete and continuous latents."""
        return len({latent.num_values is None for latent in self.latents}) > 1

    def unpack(self, states: Array) -> dict[str, Array]:
        """States (S, num_data or 1, num_bits) as one value per latent site.

        The candidate axis S becomes the leftmost batch axis, beyond every plate, so that each
        site's log probability comes out as (S, ..., num_data, ...). Whole numbers get the type
        that NumPyro's draws have: functions such as `gammaln` take their precision from it.
        """
        values, start, whole = {}, 0, jnp.result_type(int)
        for latent in self.latents:
            part = states[..., start : start + latent.size]
            if self.mixed and latent.num_values is not None:
                part = jnp.round(part).astype(whole)  # it may be an index
            elif jnp.issubdtype(part.dtype, jnp.integer):
                part = part.astype(whole)
            part = part.reshape(states.shape[:2] + latent.datum_shape)
            part = jnp.moveaxis(part, 1, latent.axis + 1)
            gap = (1,) * (self.nesting - latent.batch_ndim)
            values[latent.name] = part.reshape(part.shape[:1] + gap + part.shape[1:])
            start += latent.size
        return values

    def by_site(self, states: Array) -> dict[str, Array]:
        """A state of each datum, (num_data, num_bits), as values of the program's shape."""
        values = self.unpack(states[None])
        return {x.name: values[x.name].reshape(x.shape) for x in self.latents}

    def from_sites(self, values: Mapping[str, Array]) -> Array:
        """The other way round: values of the sites as states (num_data, num_bits)."""
        turned = (jnp.moveaxis(values[x.name], x.axis, 0) for x in self.latents)
        return jnp.concatenate([x.reshape(self.num_data, -1) for x in turned], axis=-1)

    def value_probabilities(self, states: Array, weight: Array) -> dict[str, Array]:
        """The probability of each value of each site: (num_data, ..., num_values).

        :param states: (S, num_data or 1, num_bits).
        :param weight: the probabilities of these states, (S, num_data).
        """
        tables, start = {}, 0
        for latent in self.latents:
            labels = states[..., start : start + latent.size]
            is_value = labels[..., None] == latent.lowest + np.arange(latent.num_values or 0)
            how = "sn,snik->nik"
            if len(is_value[0]) == 1:
                is_value, how = is_value[:, 0], "sn,sik->nik"
            table = jnp.einsum(how, weight, is_value.astype(weight.dtype))
            tables[latent.name] = table.reshape(len(table), *latent.datum_shape, -1)
            start += latent.size
        return tables

    def per_datum(self, log_prob: Array) -> Array:
        """Sum a site's log probability over everything but candidates and data: (S or 1, rows)."""
        log_prob = log_prob.reshape((1,) * (self.nesting + 1 - log_prob.ndim) + log_prob.shape)
        log_prob = jnp.moveaxis(log_prob, self.plate_dim, -1)
        return log_prob.sum(axis=tuple(range(1, log_prob.ndim - 1)))


def inspect(
    model: Callable,
    args: tuple = (),
    kwargs: dict | None = None,
    *,
    sites: Sequence[str] | None = None,
    plate: str | None = None,
) -> Anatomy:
    """Run `model` abstractly and say what it consists of.

    :param sites: the latent sites to read; by default all unobserved sites of the data plate.
    :param plate: the name of the data plate; found by itself unless latents lie in several.

    >>> from latentbits.models import binary_sparse_coding
    >>> parts = inspect(binary_sparse_coding, (jnp.zeros((7, 25)),), {"num_causes": 10})
    >>> parts.plate, parts.num_data, parts.num_bits, parts.parameters
    ('data', 7, 10, ('weights', 'noise', 'sparsity'))
    """
    arguments = args, kwargs or {}

    def read(trace: dict[str, dict]) -> Anatomy:
        anatomy = _dissect(trace, sites, plate)
        return anatomy._replace(meeting=_meeting(model, arguments, trace, anatomy))

    return run_abstractly(model, *arguments, read)


def _meeting(
    model: Callable, arguments: Arguments, trace: dict[str, dict], anatomy: Anatomy
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The sites outside the plate that depend on its latents, and on which."""
    sampled = [x for x in trace.values() if x["type"] == "sample"]
    drawn = [x["name"] in anatomy.names for x in sampled]
    later = sampled[drawn.index(True) :] if any(drawn) else []  # those before depend on none
    shared = {*anatomy.outside, *anatomy.parameters} & {x["name"] for x in later}
    if not shared:
        return ()
    depends = dependence(model, arguments, trace, anatomy.names)
    return tuple((x, tuple(sorted(depends[x]))) for x in trace if x in shared and depends[x])


def _dissect(trace: dict, sites: Sequence[str] | None, plate: str | None) -> Anatomy:
    for name, site in trace.items():
        scanned = site["type"] == "sample" and site.get("_control_flow_done")
        if scanned and not site["is_observed"] and site["fn"].support.is_discrete:
            raise ChainError(
                f"site {name!r} is a latent of a scan, so of a chain: marginal(model) sums it out, "
                "recover(model) gives it back, and EM learns the parameters; this is for latents "
                "of a data plate"
            )
    frames: dict[str, Any] = {}
    for site in trace.values():
        for frame in site.get("cond_indep_stack", ()):
            frames[frame.name] = frame
    plate = _data_plate(trace, sites, plate, frames)
    frame = frames[plate]

    latents, observed, likelihoods, parameters, outside = [], [], [], [], []
    for name, site in trace.items():
        inside = any(f.name == plate for f in site.get("cond_indep_stack", ()))
        if site["type"] == "param":
            parameters.append(name)
        elif site["type"] != "sample":
            continue
        elif site["is_observed"]:
            if inside:
                observed.append(name)
                likelihoods.append(type(innermost(site["fn"])).__name__)
            else:
                outside.append(name)
        elif not inside:
            if site["fn"].support.is_discrete:
                raise ProgramError(
                    f"site {name!r} is discrete and outside the plate {plate!r}: this method sums "
                    "over the latents of each row for itself; NUTS(marginal(model)) sums over what "
                    "all rows share too, numpyro.infer.DiscreteHMCGibbs(NUTS(model)) samples it, "
                    f"and numpyro.handlers.condition(model, {{{name!r}: value}}) fixes it"
                )
            parameters.append(name)
        else:
            batch = site["fn"].batch_shape
            shape = tuple(batch) + tuple(site["fn"].event_shape)
            values = values_of(site["fn"])
            latents.append(Latent(
                name, shape, len(batch), len(batch) + frame.dim,
                None if values is None else len(values), _odd(site["fn"]),
                type(innermost(site["fn"])).__name__, 0 if values is None else values.start,
            ))  # fmt: skip
    _check_sizes(trace, latents, parameters)
    if sites is not None:
        latents = [latent for latent in latents if latent.name in sites]
    held = trace.get(plate, {"type": None})
    size, wanted = held["args"] if held["type"] == "plate" else (0, None)
    return Anatomy(
        plate=plate,
        plate_dim=frame.dim,
        num_data=frame.size,
        nesting=max(-f.dim for f in frames.values()),
        latents=tuple(latents),
        observed=tuple(observed),
        parameters=tuple(parameters),
        likelihoods=tuple(likelihoods),
        outside=tuple(outside),
        drawn=wanted is not None and wanted != size,
        weighted=any(trace[x.name]["scale"] is not None for x in latents),
        shapes=tuple(jnp.shape(trace[name]["value"]) for name in parameters),
    )


def _check_sizes(trace: dict, latents: list[Latent], parameters: list[str]) -> None:
    """Nothing has been computed yet: a size with too many zeros is still harmless here."""
    for latent in latents:
        if not 0 < latent.size <= MOST_LATENTS:
            raise ProgramError(
                f"site {latent.name!r} has {latent.size} values per datum, "
                f"wanted 1 to {MOST_LATENTS}: look at the sizes given to the program"
            )
    for name in parameters:
        shape = jnp.shape(trace[name]["value"])
        if math.prod(shape) > MOST_NUMBERS:
            raise ProgramError(f"parameter {name!r} has shape {shape}: more than can be held")


def _data_plate(trace: dict, sites: Sequence[str] | None, plate: str | None, frames: dict) -> str:
    # EM sums discrete latents of a loop, or of several plates, all the same.
    refusal = GraphError if any(map(is_latent, trace.values())) else ProgramError
    if not frames:
        raise refusal(
            "the program has no numpyro.plate: put what belongs to one datum inside "
            'numpyro.plate("data", len(data))'
        )
    if plate is not None:
        if plate not in frames:
            raise ProgramError(f"no plate {plate!r} in the program: it has {sorted(frames)}")
    elif len(frames) == 1:
        plate = next(iter(frames))
    elif "data" in frames:
        plate = "data"
    else:
        plate = _plate_of_latents(trace, sites)
    if plate is None:
        raise refusal(
            f"the program has the plates {sorted(frames)}: say which one holds the data (plate=...)"
        )
    for name in sites or ():
        if name not in trace:
            known = [n for n, s in trace.items() if s["type"] == "sample"]
            raise ProgramError(f"no site {name!r} in the program: it has {known}")
        if trace[name]["type"] != "sample" or trace[name]["is_observed"]:
            raise ProgramError(f"site {name!r} is not an unobserved sample site")
        if all(f.name != plate for f in trace[name]["cond_indep_stack"]):
            raise ProgramError(
                f"site {name!r} is outside the plate {plate!r}: nothing to sum per datum"
            )
    return plate


def _plate_of_latents(trace: dict, sites: Sequence[str] | None) -> str | None:
    """The outermost of the plates that hold every discrete latent; None if there is none."""
    latents = [x for x in trace.values() if is_latent(x)]
    latents = [x for x in latents if sites is None or x["name"] in sites]
    dims = [{f.name: f.dim for f in x["cond_indep_stack"]} for x in latents]
    common = set(dims[0]).intersection(*dims) if dims else set()
    return min(common, key=lambda name: dims[0][name]) if common else None


def _odd(fn: Any) -> str | None:
    support = each_value(fn.support)
    if support.is_discrete:
        return None if values_of(fn) is not None else unlisted(fn)
    if support is constraints.real or support is constraints.real_vector:
        return None
    words = type(support).__name__.strip("_").replace("_", " ")
    return f"it does not range over the whole real line but is {words}"


def unlisted(fn: Any) -> str:
    """Why the values of a discrete distribution are not listed without being asked for."""
    low, high = bounds_of(fn)
    if low is None:
        return (
            "its least value is not known before the program runs: give its distribution bounds "
            "that are numbers of Python or NumPy"
        )
    what = "it counts without bound" if high is None else "its elements have different bounds"
    return f"{what}: up_to(model, most) lists it"


def bounds_of(fn: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The least and the largest value of each element of a discrete distribution.

    None stands for a bound that does not exist, or that only a run of the program would give.
    """
    support = each_value(fn.support)
    if support is constraints.boolean:
        return np.array(0), np.array(1)
    bounds = (getattr(support, name, None) for name in ("lower_bound", "upper_bound"))
    low, high = (
        None if x is None or isinstance(x, jax.core.Tracer) else np.asarray(x) for x in bounds
    )
    return low, high


def values_of(fn: Any) -> range | None:
    """The values of a discrete distribution, where all elements have the same known bounds."""
    low, high = bounds_of(fn) if fn.support.is_discrete else (None, None)
    if low is None or high is None or np.ptp(low) or np.ptp(high):
        return None
    return range(int(low.min()), int(high.max()) + 1)
