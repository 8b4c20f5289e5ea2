"""`marginal`: latents summed out of a program, so that samplers and guides never meet them.

An observed site that depends on the latents becomes a mixture over their states, `StateMixture`.
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

from ..compiling import remembered
from ..numerics.log_sums import log_total
from ..rows.chunks import Rows
from ..types import Arguments, Params
from .anatomy import Anatomy, Latent, ProgramError
from .elimination import sum_out
from .forms import product_floats, unwrapped
from .handlers import states as candidates
from .latent_counts import LAST, counted, up_to, warn_of_end, with_counts
from .log_joint import Parts, Structure, log_joint, parts_of
from .state_sums import in_chunks, log_sum, scale_ratio, within_rows
from .states import AllStates, StateSet
from .strategy import Plan, find_elimination, find_table, make_plan
from .tracing import each_value, run_abstractly, trace_of

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

    How the states are summed is chosen by its cost: see `inference.reading.strategy`. A latent
    count without a largest value is listed as far as the data and the program suggest, or as far as
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
            return (self if listed is self.fn else self._of(listed)).summed(*args, **kwargs)
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

    def _of(self, listed: Callable) -> marginal:
        """The same of another program."""
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
        form = find_elimination(self.fn, args, kwargs, self.states, self.sites, self.plate)
        if form is not None:
            return sum_out(self.fn, form, args, kwargs)
        anatomy, whole = find_table(self.fn, args, kwargs, self.sites, self.plate)
        if self.sites is None and not anatomy.observed:
            # Without data the observed site looks like a latent, but nothing depends on it.
            above = [x for x in anatomy.latents if self._has_children(anatomy, x, args, kwargs)]
            anatomy = anatomy._replace(latents=tuple(above))
        if not anatomy.latents:
            raise ProgramError(
                "the program has no discrete latent site in its data plate to sum out"
            )
        anatomy.check_rows_are_apart()
        alone = whole.latents == anatomy.latents
        plan = make_plan(self.fn, anatomy, alone, self.states, self.structure, args, kwargs)
        self._run = _Run(self.fn, anatomy, plan, (args, kwargs))
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._run = None  # its arrays may be tracers of a trace that is over

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
        if not run.inside(msg):
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
        if run is None or msg["type"] not in ("sample", "param", "plate", "deterministic"):
            return
        hidden = msg["type"] == "deterministic" and run.inside(msg)
        if msg["name"] in run.pending:
            run.condition(msg)
        elif not (msg.get("is_observed") or msg["name"] in run.values or hidden):
            run.given[msg["name"]] = msg["value"]


class _Run:
    """One call of a marginal program. Its latents are in any state: the shapes of the sites tell
    which depend on them, and the mixtures run the program anew on all states."""

    def __init__(self, model: Callable, anatomy: Anatomy, plan: Plan, arguments: Arguments):
        self.model, self.anatomy, self.plan, self.arguments = model, anatomy, plan, arguments
        any_state = jnp.zeros((1, 1, anatomy.num_bits), jnp.int32) + anatomy.lowest
        self.values = anatomy.unpack(any_state)
        self.given: Params = {}  # the sites that are not summed out, as far as the program has run
        self.scale: Any = None
        self.before: Params = {}  # the observed sites so far
        self.pending: dict[str, StateMixture] = {}
        self.waiting = set(self.values)

    def inside(self, msg: dict[str, Any]) -> bool:
        return any(frame.name == self.anatomy.plate for frame in msg["cond_indep_stack"])

    def depends(self, fn: dist.Distribution) -> bool:
        return len(fn.batch_shape) > self.anatomy.nesting

    def enter(self, msg: dict[str, Any]) -> None:
        """A latent site: hide it, in any state."""
        if self.before:
            raise ProgramError(
                f"site {msg['name']!r} is sampled after an observed site of the same datum: "
                "sample every latent of a datum before its observations"
            )
        if self.waiting == set(self.values):
            self.scale = msg["scale"]
        self.waiting.discard(msg["name"])
        msg["value"], msg["stop"] = self.values[msg["name"]], True

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
        msg["fn"] = self.pending[msg["name"]] = StateMixture(
            self.model, self.plan, msg["name"], within_rows(msg["fn"], self.anatomy),
            dict(self.given), self.before, self.arguments,
        )  # fmt: skip
        msg["scale"] = self.scale
        msg["cond_indep_stack"] = [
            frame for frame in msg["cond_indep_stack"] if frame.dim <= self.anatomy.plate_dim
        ]

    def condition(self, msg: dict[str, Any]) -> None:
        """The observed site has its value, which later ones are conditioned on."""
        mixture = self.pending.pop(msg["name"])
        self.before = {**self.before, msg["name"]: mixture.whole(msg["value"])}


def row_evidence(
    model: Callable,
    anatomy: Anatomy,
    params: Params,
    arguments: Arguments,
    structure: Structure | None = None,
) -> Array:
    """log p(y_n) of each row, (num_data,): what `marginal` puts in place of what is observed."""
    params = {name: jnp.asarray(value) for name, value in params.items()}
    program = marginal(model, sites=anatomy.names, plate=anatomy.plate, structure=structure)
    # By default a GPU multiplies single precision with ten bits.
    with jax.default_matmul_precision("highest"):
        trace = trace_of(program.summed, arguments, params)
        if isinstance(model, up_to):
            program.watch(model, trace, *arguments)
        sites = [trace[name] for name in anatomy.observed]
        mixed = [x for x in sites if isinstance(x["fn"], StateMixture)]
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
    r"""The distribution of an observed site with the latents of its datum summed out.

    .. math:: \log p(y_n \mid \text{sites before}) =
              \log \sum_s p(s, \text{sites before}, y_n) - \log \sum_s p(s, \text{sites before})

    The program is run anew, on all states of the plan; by chunks of rows where these have
    distributions, or states, of their own. Over a truncated set of states it is a lower bound.

    :param site: the observed site.
    :param component: p(y | s), of which only the shapes are used.
    :param given: values of all unobserved sites that are not summed out.
    :param before: the sites of the datum observed before this one, each with its value.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("given", "before", "arguments")
    pytree_aux_fields = ("model", "plan", "site", "own_support")
    _found: tuple[Array, Array] | None = None

    def __init__(
        self,
        model: Callable,
        plan: Plan,
        site: str,
        component: dist.Distribution,
        given: Params,
        before: Params,
        arguments: Arguments,
    ):
        self.model, self.plan, self.site = model, plan, site
        self.given, self.before, self.arguments = given, before, arguments
        self.own_support = support_of(component)
        super().__init__(component.batch_shape[-1:], component.event_shape)

    @property
    def support(self) -> Any:
        return self.own_support

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        # Asked twice, by `marginal.watch` and by whoever uses the program, it would run twice.
        if self._found is None or self._found[0] is not value:
            both = self._total({**self.before, self.site: self.whole(value)})
            # Unless the set of states is truncated, their prior sums to one.
            self._found = value, both - self._total(self.before) if self.before else both
        return self._found[1]

    def whole(self, value: Array) -> Array:
        """A value with all its columns: a distribution may have one for several."""
        shape = jnp.broadcast_shapes(jnp.shape(value), self.batch_shape + self.event_shape)
        return jnp.broadcast_to(value, shape)

    def _total(self, values: Params) -> Array:
        """log Σ_s p(s, values) of every row, (num_data,)."""
        if self.plan.by_chunk is not None:
            return self._by_chunk(values, self.plan.by_chunk)
        (num_data,), bits, parts_at = self.batch_shape, self.plan.bits, self._parts

        def total(given: Params, values: Params) -> Array:
            parts = parts_at(given, values)
            return log_sum(parts.log_weights, parts.sites, num_data, bits)

        return remembered(total)(self.given, values)

    @property
    def _parts(self) -> Callable[[Params, Params], Parts]:
        model, (layers, tables, *_), arguments = self.model, self.plan, self.arguments

        def parts_at(given: Params, values: Params) -> Parts:
            program = handlers.seed(handlers.substitute(model, data=values), 0)
            return parts_of(program, layers, given, tables, arguments, set(values))

        return parts_at

    def _by_chunk(self, values: Params, rows: Rows) -> Array:
        (anatomy,), (table,), bits = self.plan[:3]
        given = {name: self.given[name] for name in anatomy.parameters if name in self.given}
        by_row = table.shape[1] > 1
        states = bits.states if bits is not None and bits.by_row else None
        chunked = {
            "leaves": tuple(rows.leaves),
            "values": values,
            "table": jnp.swapaxes(table, 0, 1) if by_row else None,
            "states": None if states is None else jnp.swapaxes(jnp.asarray(states), 0, 1),
        }

        def evidence(chunk: dict[str, Any]) -> Array:
            local = anatomy.with_rows(len(chunk["leaves"][0]))
            own = jnp.swapaxes(chunk["table"], 0, 1) if by_row else table
            program = handlers.seed(handlers.substitute(self.model, data=chunk["values"]), 0)
            arguments = rows.join(chunk["leaves"])
            own = own.astype(jnp.int32)
            logits = log_joint(program, local, given, own, arguments, set(values))
            if bits is None:
                return log_total(logits, 0, False)
            return bits.total(bits.split(logits), chunk["states"])

        floats = len(table) * (rows.width + anatomy.num_bits) + (0 if bits is None else bits.floats)
        return in_chunks(evidence, chunked, rows.num_data, max(1, product_floats() // floats))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """A draw of each datum's state, and the program's draw of the site in that state."""
        plan = self.plan
        if plan.bits is not None or plan.by_chunk is not None:
            raise ProgramError(
                "where data are given nothing is drawn in their place: call the program without"
            )
        parts, table, layer = self._parts(self.given, self.before), plan.tables[-1], plan.layers[-1]
        weights = parts.log_weights
        for part in parts.sites:
            weights = weights + part.log_prob(*self.batch_shape)
        weights = jnp.broadcast_to(weights, weights.shape[:1] + self.batch_shape)
        table = jnp.broadcast_to(table, weights.shape + table.shape[2:])

        def draw(key: Array) -> Array:
            key_state, key_value = random.split(key)
            chosen = random.categorical(key_state, weights, axis=0)
            states = jnp.take_along_axis(table, chosen[None, :, None], axis=0)[0]
            values = {**self.given, **self.before, **layer.by_site(states)}
            return trace_of(handlers.seed(self.model, key_value), self.arguments, values)[
                self.site
            ]["value"]

        keys = random.split(key, math.prod(sample_shape))
        return jax.vmap(draw)(keys).reshape(sample_shape + self.batch_shape + self.event_shape)
