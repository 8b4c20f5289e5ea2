"""`marginal`: latents summed out of a program, so that samplers and guides never meet them.

An observed site of the latents becomes a mixture over their states: `StateMixture`, or
`ProgramMixture` where rows have distributions, or states, of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax, random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample
from numpyro.primitives import Messenger

from ..numerics.log_sums import log_total
from ..rows.chunks import Rows
from ..types import Arguments, Params
from .anatomy import Anatomy, Latent, ProgramError, inspect
from .counts import LAST, counted, up_to, warn_of_end, with_counts
from .distributions import with_finite_slopes
from .elimination import sum_out
from .forms import BitsForm, product_floats, unwrapped
from .handlers import states as candidates
from .log_joint import Structure, log_joint
from .plan import Outline, Plan, make_plan, unmasked
from .states import AllStates, StateSet
from .sums import Part, in_chunks, log_prior_of, log_sum, scale_ratio, within_rows
from .tracing import each_value, run_abstractly, trace_of
from .ways import find_way

MARGIN = 10.0
"""Nats below the best parameters so far up to which a list that is too short is reported."""


# `marginal` is the same table read outward. A latent site disappears (it is stopped here, so that
# samplers outside never meet a discrete site), and its log probabilities become the weights of a
# mixture over candidates: the distribution of the observed site. With several observed sites the
# chain rule holds, each is a mixture under the posterior given those before it.
class marginal(Messenger):  # noqa: N801
    """Sum latents out of a program, exactly or over a truncated set of states.

    ``NUTS(marginal(model))``, ``SVI(marginal(model), ...)``, ``Predictive`` and ``log_likelihood``
    then see a program without discrete latents.

    :param fn: the program.
    :param states: which states to sum over; a truncated set gives a lower bound.
    :param sites: the latent sites to sum out; by default every discrete one.
    :param plate: sum out those of this plate only.
    :param structure: the form of the log joint in the bits, if it is not to be found by itself.

    How the states are summed is chosen by its cost: see `inference.reading.plan`. A latent count
    without a largest value is listed as far as the data and the program suggest, or as far as
    `up_to` says. A warning tells if its posterior reaches the end of the list; `left_out` states
    what is missed.

    >>> from numpyro.infer.util import log_density
    >>> from latentbits.models import binary_sparse_coding
    >>> params = {"weights": jnp.eye(2, 3), "noise": 1.0, "sparsity": 0.3}
    >>> arguments = (jnp.ones((1, 3)),), {"num_causes": 2}
    >>> density = lambda p: log_density(marginal(binary_sparse_coding), *arguments, p)[0]
    >>> bool(jnp.isfinite(jax.jit(density)(params)))
    True
    """

    def __init__(
        self,
        fn: Callable,
        states: StateSet = AllStates(),
        *,
        sites: Sequence[str] | None = None,
        plate: str | None = None,
        structure: Structure | None = None,
    ):
        self.states, self.sites, self.plate, self.structure = states, sites, plate, structure
        self._run: _Run | None = None
        self._bests: dict[tuple[int, ...], tuple[list, list[float]]] = {}
        super().__init__(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        listed = with_counts(self.fn, args, kwargs)
        if not isinstance(listed, up_to):
            return self.summed(*args, **kwargs)
        with handlers.trace() as trace:
            returned = self._of(listed).summed(*args, **kwargs)
        self.watch(listed, trace, args, kwargs, self._best(args, kwargs))
        return returned

    def _best(self, args: tuple, kwargs: dict) -> list[float]:
        """The largest log evidence so far of these data, one object for all traces of a program."""
        leaves, new = jax.tree.leaves((args, kwargs)), [-math.inf]
        if any(isinstance(x, jax.core.Tracer) for x in leaves):
            return new
        # The data are held with it: another array could get the identity of one that is gone.
        return self._bests.setdefault(tuple(map(id, leaves)), (leaves, new))[1]

    def _of(self, listed: up_to) -> marginal:
        """The same of a program whose counts are listed."""
        return marginal(listed, self.states, sites=self.sites, plate=self.plate)

    def watch(
        self,
        listed: up_to,
        trace: dict[str, dict],
        args: tuple,
        kwargs: dict,
        best: list[float] | None = None,
    ) -> None:
        """Warn at run time if the posterior of a count reaches the end of its list.

        The evidence is computed once more with a larger weight of the last counts: by how much it
        rises tells their share, in whatever way latents are summed.

        :param trace: of the program with its latents summed out.
        :param best: the largest log evidence so far, which is updated; infinite after a warning. A
            sampler looks for its step size at parameters far from all data, where any list is too
            short: nothing is said of those. None: it is said of all.
        """
        names = counted(listed, args, kwargs)
        if not names:
            return
        free = [x for x in trace.values() if x["type"] in ("sample", "param", "plate")]
        given = {x["name"]: x["value"] for x in free if not x.get("is_observed")}
        heavier = self._of(up_to(listed.fn, listed.most, extra=math.log(1.0 / LAST)))
        other = trace_of(heavier.summed, (args, kwargs), lax.stop_gradient(given))
        observed = [x for x in other.values() if x["type"] == "sample" and x["is_observed"]]

        def evidence(trace: dict[str, dict]) -> Array:
            sites = (trace[x["name"]] for x in observed)
            each = (x["fn"].log_prob(x["value"]).sum() for x in sites)
            return lax.stop_gradient(sum(each, jnp.zeros(())))

        def report(total: Array, heavier: Array) -> None:
            far = best is not None and total < best[0] - MARGIN
            reached = not far and heavier - total > math.log(2.0)
            if best is not None:
                best[0] = math.inf if reached else max(best[0], float(total))
            if reached:
                warn_of_end(listed, names)

        jax.debug.callback(report, evidence(trace), evidence(other))

    def summed(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, whose counts are listed, with its latents summed out."""
        way = find_way(self.fn, args, kwargs, self.states, self.sites, self.plate)
        if way is not None:
            return sum_out(self.fn, way, args, kwargs)
        anatomy = inspect(self.fn, args, kwargs, plate=self.plate, sites=self.sites)
        whole = anatomy
        if self.sites is not None:
            whole = inspect(self.fn, args, kwargs, plate=self.plate)
        else:
            anatomy = anatomy._replace(latents=self._discrete(anatomy, args, kwargs))
        if not anatomy.latents:
            raise ProgramError(
                "the program has no discrete latent site in its data plate to sum out"
            )
        anatomy.check_rows_are_apart()
        plan, outline = make_plan(
            self.fn, anatomy, whole.latents == anatomy.latents,
            self.states, self.structure, args, kwargs,
        )  # fmt: skip
        kind = _Run if plan.by_chunk is None else _RunByChunk
        self._run = kind(self.fn, anatomy, plan, outline)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._run = None  # its arrays may be tracers of a trace that is over

    def _discrete(self, anatomy: Anatomy, args: tuple, kwargs: dict) -> tuple[Latent, ...]:
        """The discrete latents; without data the observed site looks like one, but is a leaf."""
        discrete = [x for x in anatomy.latents if x.num_values is not None]
        if not anatomy.observed:
            discrete = [x for x in discrete if self._has_children(anatomy, x, args, kwargs)]
        return tuple(discrete)

    def _has_children(self, anatomy: Anatomy, latent: Latent, args: tuple, kwargs: dict) -> bool:
        gap = (1,) * (anatomy.nesting - latent.batch_ndim)
        twice = jnp.zeros((2, *gap, *latent.shape), jnp.int32)

        def deepest(trace: dict[str, dict]) -> int:
            sites = [site for site in trace.values() if site["type"] == "sample"]
            return max(len(site["fn"].batch_shape) for site in sites)

        program = candidates(self.fn, {latent.name: twice})
        return run_abstractly(program, args, kwargs, deepest) > anatomy.nesting

    def process_message(self, msg: dict[str, Any]) -> None:
        run = self._run
        if run is None:
            raise ProgramError("marginal works as marginal(model)(...), not as a context manager")
        if msg["type"] not in ("sample", "deterministic"):
            return
        if all(frame.name != run.anatomy.plate for frame in msg["cond_indep_stack"]):
            return
        if msg["type"] == "deterministic":
            # It would be recorded with a candidate axis that no handler outside expects.
            msg["stop"] = True
        elif msg["name"] in run.values:
            run.enter(msg)
        elif run.depends(msg["fn"]):
            run.mix(msg)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        run = self._run
        if run is None or msg["type"] not in ("sample", "param"):
            return
        if msg["name"] in run.pending:
            run.condition(msg)
        elif msg["name"] in run.anatomy.parameters:
            run.params[msg["name"]] = msg["value"]


class _Run:
    """The running weights log p(s, sites so far) of one call of a marginal program."""

    def __init__(self, model: Callable, anatomy: Anatomy, plan: Plan, outline: Outline):
        self.model, self.anatomy, self.plan, self.outline = model, anatomy, plan, outline
        self.values = self._values()
        self.params: Params = {}  # the sites outside the plate
        self.log_weights: Array | None = None  # (S, rows)
        self.layer = 0
        self.hanging: list[Part] = []  # sites of this layer, given the states of the one above
        self.scale: Any = None
        self.before: Any = ()  # the observed sites so far
        self.pending: dict[str, Any] = {}
        self.seen_observed = False
        self.waiting = set(self.values)

    def _values(self) -> dict[str, Array]:
        values: dict[str, Array] = {}
        for layer, table in zip(self.plan.layers, self.plan.tables, strict=True):
            values |= layer.unpack(table.astype(jnp.int32))
        return values

    def depends(self, fn: dist.Distribution) -> bool:
        return len(fn.batch_shape) > self.anatomy.nesting

    def enter(self, msg: dict[str, Any]) -> None:
        """A latent site: give it all its states and count their prior probability."""
        if self.seen_observed:
            raise ProgramError(
                f"site {msg['name']!r} is sampled after an observed site of the same datum: "
                "sample every latent of a datum before its observations"
            )
        if self.waiting == set(self.values):
            self.scale = msg["scale"]
        self.waiting.discard(msg["name"])
        self.weigh(msg)
        msg["value"], msg["stop"] = self.values[msg["name"]], True

    def weigh(self, msg: dict[str, Any]) -> None:
        """Count the prior probability of a latent's states."""
        value, power = self.values[msg["name"]], scale_ratio(msg["scale"], self.scale)
        if msg["name"] not in self.plan.layers[self.layer].names:
            self.descend()
        if self.layer:
            latent = next(x for x in self.anatomy.latents if x.name == msg["name"])
            datum = value.reshape(len(value), *latent.datum_shape)
            fn = unmasked(within_rows(msg["fn"], self.anatomy))
            self.hanging.append(Part(fn, datum, power, True))
            return
        each = power * self.anatomy.per_datum(log_prior_of(msg["fn"], value))
        self.log_weights = each if self.log_weights is None else self.log_weights + each

    def descend(self) -> None:
        """Sum a layer out: what is left is the probability of each state of the next.

        The states of the layer below stand where rows do otherwise.
        """
        assert self.log_weights is not None
        if self.layer:
            count = len(self.plan.tables[self.layer])
            self.log_weights = log_sum(self.log_weights, tuple(self.hanging), count)[:, None]
        self.layer, self.hanging = self.layer + 1, []

    def mix(self, msg: dict[str, Any]) -> None:
        """An observed site, or one to be simulated: it becomes the mixture over states."""
        if self.anatomy.observed and not msg["is_observed"]:
            raise ProgramError(
                f"the unobserved site {msg['name']!r} hangs on sites that are summed out: it would "
                "need one value per state; sum it out too, or sample it first"
            )
        if any(frame.dim < self.anatomy.plate_dim for frame in msg["cond_indep_stack"]):
            raise ProgramError(
                f"site {msg['name']!r} is in a plate around the plate {self.anatomy.plate!r}: a "
                "datum's states are summed for all of it at once; put the data plate outermost"
            )
        if self.waiting:
            raise ProgramError(
                f"site {msg['name']!r} comes before the latents {sorted(self.waiting)} of its "
                "datum: sample every latent of a datum before its observations"
            )
        if isinstance(unwrapped(msg["fn"])[0], dist.Unit):
            # The value of a `numpyro.factor` is empty, but has the axis of the states.
            msg["value"] = jnp.zeros((self.anatomy.num_data, 0))
        msg["fn"] = self.pending[msg["name"]] = self.mixture(msg)
        msg["scale"] = self.scale
        msg["cond_indep_stack"] = [
            frame for frame in msg["cond_indep_stack"] if frame.dim <= self.anatomy.plate_dim
        ]
        self.seen_observed = True

    def mixture(self, msg: dict[str, Any]) -> dist.Distribution:
        if self.hanging:
            self.descend()
        assert self.log_weights is not None
        return StateMixture(
            msg["fn"], self.log_weights, self.before, scale_ratio(msg["scale"], self.scale),
            self.anatomy, self.outline.masks_alike, self.plan.bits,
        )  # fmt: skip

    def condition(self, msg: dict[str, Any]) -> None:
        """The observed site has its value: update the weights for the sites that follow."""
        mixture = self.pending.pop(msg["name"])
        self.before = (*self.before, mixture.part(msg["value"]))


class _RunByChunk(_Run):
    """A run that shows nothing but shapes: its mixtures run the program anew, chunk by chunk."""

    def _values(self) -> dict[str, Array]:
        return self.anatomy.unpack(jnp.zeros((1, 1, self.anatomy.num_bits), jnp.int32))

    def weigh(self, msg: dict[str, Any]) -> None:
        pass

    def mixture(self, msg: dict[str, Any]) -> dist.Distribution:
        rows, (table,) = self.plan.by_chunk, self.plan.tables
        assert rows is not None
        return ProgramMixture(
            self.model, self.anatomy, msg["name"], msg["fn"], dict(self.params), rows, table,
            dict(self.before), self.plan.bits,
        )  # fmt: skip

    def condition(self, msg: dict[str, Any]) -> None:
        mixture = self.pending.pop(msg["name"])
        self.before = {**dict(self.before), msg["name"]: mixture._whole(msg["value"])}


def row_evidence(
    model: Callable,
    anatomy: Anatomy,
    params: Params,
    arguments: Arguments,
    structure: Structure | None = None,
) -> Array:
    """log p(y_n) of each row, (num_data,): all that `marginal` puts in place of what is observed.

    >>> from latentbits.models import bernoulli_mixture
    >>> params = {"mixing": jnp.array([0.5, 0.5]), "probs": jnp.array([[0.9], [0.1]])}
    >>> arguments = (jnp.array([[1]]),), {"num_components": 2}
    >>> anatomy = inspect(bernoulli_mixture, *arguments)
    >>> evidence = jax.jit(lambda p: row_evidence(bernoulli_mixture, anatomy, p, arguments))(params)
    >>> round(float(jnp.exp(evidence[0])), 4)
    0.5
    """
    params = {name: jnp.asarray(value) for name, value in params.items()}
    program = marginal(model, sites=anatomy.names, plate=anatomy.plate, structure=structure)
    # By default a GPU multiplies single precision with ten bits.
    with jax.default_matmul_precision("highest"):
        trace = trace_of(program.summed, arguments, params)
        if isinstance(model, up_to):
            program.watch(model, trace, *arguments)
        sites = [trace[name] for name in anatomy.observed]
        mixed = [x for x in sites if isinstance(x["fn"], StateMixture | ProgramMixture)]
        total = jnp.zeros(anatomy.num_data)
        for site in sites:
            each = site["fn"].log_prob(site["value"])
            if all(site is not x for x in mixed):  # the latents do not bear on it
                power = scale_ratio(site["scale"], mixed[0]["scale"] if mixed else None)
                each = power * anatomy.per_datum(each)[0]
            total = total + each
    return total


def support_of(fn: dist.Distribution) -> Any:
    """Where the values of a distribution over states lie, as whole events.

    NumPyro says of the value of a `factor` that each of its (no) numbers is real. Bounds that
    differ between states bound none of the values.
    """
    support, base = fn.support, each_value(fn.support)
    bounds = [getattr(base, name, 0) for name in ("lower_bound", "upper_bound")]
    if support.is_discrete and any(jnp.ndim(x) for x in bounds):
        support = constraints.nonnegative_integer
    lacking = len(fn.event_shape) - support.event_dim
    return constraints.independent(support, lacking) if lacking else support


class StateMixture(dist.Distribution):
    r"""A mixture over candidate states, one per datum.

    .. math:: \log p(y_n \mid \text{sites before}) =
              \log \sum_s \exp\{\log w_{sn} + \alpha \log p(y_n \mid s)\}
              - \log \sum_s \exp\{\log w_{sn}\}

    :param component: p(y | s), its leftmost batch axis the S candidates.
    :param log_weights: log p(s), (S, rows or 1); over a truncated set they sum to less than one,
        and the mixture is a lower bound.
    :param before: the sites of the datum observed before this one, whose log probabilities belong
        to :math:`\log w` as well, each with its value.
    :param power: :math:`\alpha`, where the site is scaled differently from the latents.
    :param alike: whether the mask of the site, if it has one, is the same for all states.
    :param bits: the states that the few of `component` stand for, if they do.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("component", "log_weights", "before", "power")
    pytree_aux_fields = ("anatomy", "alike", "bits")

    def __init__(
        self,
        component: dist.Distribution,
        log_weights: Array,
        before: tuple[Part, ...],
        power: Any,
        anatomy: Anatomy,
        alike: bool = True,
        bits: BitsForm | None = None,
    ):
        self.component = within_rows(component, anatomy)
        self.log_weights, self.before, self.power = log_weights, before, power
        self.anatomy, self.alike, self.bits = anatomy, alike, bits
        super().__init__(
            batch_shape=self.component.batch_shape[-1:], event_shape=self.component.event_shape
        )

    @property
    def support(self) -> Any:
        return support_of(self.component)

    def part(self, value: Array) -> Part:
        """What this site adds to the log weights of the states once its value is known."""
        return Part(with_finite_slopes(self.component), value, self.power, self.alike)

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        def total(parts: tuple[Part, ...]) -> Array:
            return log_sum(self.log_weights, parts, self.batch_shape[0], self.bits)

        both = total((*self.before, self.part(value)))
        # Unless the set of states is truncated, their prior sums to one.
        return both - total(self.before) if self.before else both

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        if self.bits is not None:
            raise ProgramError(
                "where data are given nothing is drawn in their place: call the program without"
            )
        key_state, key_value = random.split(key)
        weights = self.log_weights
        for part in self.before:
            weights = weights + part.log_prob(*self.batch_shape)
        weights = jnp.broadcast_to(weights, weights.shape[:1] + self.batch_shape)
        chosen = random.categorical(
            key_state, weights, axis=0, shape=sample_shape + self.batch_shape
        )
        draws = self.component.sample(key_value, sample_shape)
        axis = len(sample_shape)
        draws = draws.reshape((*sample_shape, -1, *self.batch_shape, *self.event_shape))
        index = chosen.reshape((*sample_shape, 1, *self.batch_shape) + (1,) * self.event_dim)
        return jnp.take_along_axis(draws, index, axis=axis).squeeze(axis)


class ProgramMixture(dist.Distribution):
    """The same mixture where rows have distributions, or states, of their own.

    Nothing that the states of all rows make at once is held: the program is run anew, on the states
    of a chunk of rows.

    :param model: the program, the sites in `params` being all that its rows depend on.
    :param component: p(y | s), of which only the shapes are used.
    :param table: states (S, num_data or 1, bits).
    :param before: the sites of the datum observed before this one, each with its value.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("params", "rows", "table", "before")
    pytree_aux_fields = ("model", "anatomy", "site", "own_support", "bits")
    _found: tuple[Array, Array] | None = None

    def __init__(
        self,
        model: Callable,
        anatomy: Anatomy,
        site: str,
        component: dist.Distribution,
        params: Params,
        rows: Rows,
        table: Array,
        before: dict[str, Array],
        bits: BitsForm | None,
    ):
        component = within_rows(component, anatomy)
        self.model, self.anatomy, self.site = model, anatomy, site
        self.params, self.rows, self.table, self.before = params, rows, table, before
        self.own_support, self.bits = support_of(component), bits
        super().__init__(component.batch_shape[-1:], component.event_shape)

    @property
    def support(self) -> Any:
        return self.own_support

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        # Asked twice, by `marginal.watch` and by whoever uses the program, it would run twice.
        if self._found is None or self._found[0] is not value:
            both = self._total({**self.before, self.site: self._whole(value)})
            self._found = value, both - self._total(self.before) if self.before else both
        return self._found[1]

    def _whole(self, value: Array) -> Array:
        # A distribution may have one column for several that are observed.
        shape = jnp.broadcast_shapes(jnp.shape(value), self.batch_shape + self.event_shape)
        return jnp.broadcast_to(value, shape)

    def _total(self, values: dict[str, Array]) -> Array:
        """log Σ_s p(s, values) of every row, (num_data,)."""
        by_row = self.table.shape[1] > 1
        states = self.bits.states if self.bits is not None and self.bits.by_row else None
        chunked = {
            "leaves": tuple(self.rows.leaves),
            "values": values,
            "table": jnp.swapaxes(self.table, 0, 1) if by_row else None,
            "states": None if states is None else jnp.swapaxes(jnp.asarray(states), 0, 1),
        }

        def evidence(chunk: dict[str, Any]) -> Array:
            size = len(chunk["leaves"][0])
            table = jnp.swapaxes(chunk["table"], 0, 1) if by_row else self.table
            program = handlers.seed(handlers.substitute(self.model, data=chunk["values"]), 0)
            logits = log_joint(
                program, self.anatomy.with_rows(size), self.params, table.astype(jnp.int32),
                self.rows.join(chunk["leaves"]), set(values),
            )  # fmt: skip
            if self.bits is None:
                return log_total(logits, 0, False)
            return self.bits.total(self.bits.split(logits), chunk["states"])

        width = self.rows.width + self.anatomy.num_bits
        floats = len(self.table) * width + (0 if self.bits is None else self.bits.floats)
        return in_chunks(evidence, chunked, self.rows.num_data, max(1, product_floats() // floats))
