"""Finding the chain of a program: its latents, how far back they look, and what else they reach.

How far back follows from provenance: which site and which leaf of the carry depends on which. That
is read off the operations of a step and holds for all parameters and data; where it says too much
(two latents in one array, say) a program is refused that might have been summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from numpyro import handlers
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from .abstract import ProgramError, densities, origins, run_abstractly, trace_of, unknowns
from .chain import Chain, Link, NoSites, first_step, has_latents, is_latent, traced

MOST_RUNS = 1 << 16
"""Of the program, to read the factors of a chain: S^(order + 1)."""


def find_chain(model: Callable, args: tuple, kwargs: dict) -> Chain | None:
    """The chain of a program; None if no scan of it has discrete latents.

    >>> import numpyro, numpyro.distributions as dist
    >>> from numpyro.contrib.control_flow import scan
    >>> def weather(seen):
    ...     def step(rainy, umbrella):
    ...         rainy = numpyro.sample("rainy", dist.Bernoulli(0.2 + 0.6 * rainy))
    ...         numpyro.sample("umbrella", dist.Bernoulli(0.1 + 0.8 * rainy), obs=umbrella)
    ...         return rainy, None
    ...     scan(step, jnp.array(0), seen)
    >>> chain = find_chain(weather, (jnp.array([1, 1, 0]),), {})
    >>> chain.names, chain.observed, chain.length, chain.order
    (('rainy',), ('umbrella',), 3, 1)
    """
    survey = _Survey(model)
    return run_abstractly(survey, args, kwargs, lambda trace: survey.chain(trace, args, kwargs))


class _Survey(Messenger):
    """Finds the scans over discrete latents in an abstract run of a program."""

    def __init__(self, fn: Callable):
        self.scans: list[tuple] = []
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "control_flow" and has_latents(msg["args"]):
            self.scans.append(msg["args"])

    def chain(self, trace: dict[str, dict], args: tuple, kwargs: dict) -> Chain | None:
        if not self.scans:
            return None
        if len(self.scans) > 1:
            raise ProgramError(
                f"the program has {len(self.scans)} scans over discrete latents: one can be summed"
            )
        f, init, x = first_step(self.scans[0])
        xs, length, reverse = self.scans[0][2:]
        if length is None:
            length = jax.tree.leaves(xs)[0].shape[0]
        step = traced(f, init, x)[0]
        sites = {name: site for name, site in step.items() if site["type"] == "sample"}
        latents = [site for site in sites.values() if is_latent(site)]
        observed = tuple(name for name, site in sites.items() if site["is_observed"])
        outer = [x for x in trace.values() if not x.get("_control_flow_done")]
        start = [site for site in outer if is_latent(site)]
        # The plates that hold all latents, from left to right: a sequence for each of their cells.
        held = [
            {(f.name, f.dim, f.size) for f in x["cond_indep_stack"]} for x in (*latents, *start)
        ]
        plates = tuple(sorted(set.intersection(*held), key=lambda plate: plate[1]))
        frames = [f for x in (*sites.values(), *start) for f in x["cond_indep_stack"]]
        chain = Chain(
            links=(), start=(), plates=plates, nesting=max([-f.dim for f in frames], default=0),
            orders=(), starters=(), observed=observed, hidden=tuple(set(step) - set(sites)),
            parameters=unknowns(outer, [x["name"] for x in start]),
            other=(), length=length, reverse=reverse,
        )  # fmt: skip
        if not observed:  # a simulation: what is not observed may be more than the latents
            return chain
        for site in sites.values():
            if not site["is_observed"] and not is_latent(site):
                raise ProgramError(
                    f"site {site['name']!r} of the scan is continuous and unobserved beside the "
                    f"discrete {latents[0]['name']!r}: a chain has discrete latents only"
                )
        chain = chain._replace(
            links=tuple(Link.of(site, plates) for site in latents),
            start=tuple(Link.of(site, plates) for site in start),
        )
        depends, carried = _dependence(chain, f, init, x)
        orders = _orders(depends, carried)
        chain = chain._replace(
            orders=tuple(orders.items()),
            observed=tuple(name for name in observed if name in orders),
            reached=_reached(carried),
            steady=_steady(depends, carried),
        )
        _check_size(chain)
        _check_scales(chain, sites, trace)
        return self._outer(chain, sites, trace, depends, carried, args, kwargs)

    def _outer(
        self,
        chain: Chain,
        sites: dict[str, dict],
        trace: dict[str, dict],
        depends: Depends,
        carried: list[frozenset],
        args: tuple,
        kwargs: dict,
    ) -> Chain:
        """The chain, with what lies outside the scan and depends on its latents."""
        kept = {x: y for x, y in trace.items() if x not in (*sites, *chain.names, *chain.hidden)}
        on = _provenance(self.fn, chain, args, kwargs, kept)
        for name in on.sites:
            if "returned" in on.sites[name] and trace[name]["type"] == "sample":
                raise ProgramError(
                    f"site {name!r} depends on what the scan returns, and so on its latents "
                    f"{[x.name for x in chain.links]}: observe it inside the scan"
                )
        reach = {f"carry {i}" for i, on_leaf in enumerate(on.init) if "start" in on_leaf}
        again = {f"carry {i}" for i, on_leaf in enumerate(carried) if on_leaf & reach}
        if "start" in on.inside or any(on_site & again for on_site in depends.values()):
            raise ProgramError(
                f"the latents {[x.name for x in chain.start]} before the scan act on more than its "
                "first step (a mixture of chains): only the state before the first step can be "
                "summed with a chain; make them part of the state of each step"
            )
        latent = [name for name in on.sites if on.sites[name] & {"start", "returned"}]
        starters = tuple(name for name in latent if trace[name]["type"] == "sample")
        for name, _ in chain.orders:
            _check_plates(sites[name], chain.plates)
        for name in starters:
            _check_plates(trace[name], chain.plates)
        more = tuple(name for name in latent if trace[name]["type"] == "deterministic")
        seen = [x["name"] for x in trace.values() if x["type"] == "sample" and x["is_observed"]]
        other = tuple(name for name in seen if name not in (*chain.observed, *starters))
        return chain._replace(
            starters=starters,
            hidden=(*chain.hidden, *more),
            other=other,
            effects=_effects(chain, sites, trace, on.sites),
        )


def _effects(
    chain: Chain, sites: dict[str, dict], trace: dict[str, dict], depends: Depends
) -> tuple[str, ...]:
    """The sites outside the scan that are no parameters: random effects.

    Each has a value for every sequence; or for every cell of another plate of a step, and a
    distribution that depends on other unobserved sites.
    """
    sequences = {name for name, *_ in chain.plates}
    every = {f.name for site in sites.values() for f in site["cond_indep_stack"]}
    drawn = [trace[name] for name in chain.parameters if trace[name]["type"] == "sample"]
    effects = []
    for site in drawn:
        plates = {f.name for f in site["cond_indep_stack"]}
        others = depends[site["name"]] - {"start", "returned", f"site {site['name']}"}
        if plates & sequences or (plates & every and others):
            effects.append(site["name"])
    return tuple(effects)


def _check_size(chain: Chain) -> None:
    runs = chain.num_states ** (chain.order + 1)
    if runs > MOST_RUNS:
        raise ProgramError(
            f"the latents {[x.name for x in chain.links]} have {chain.num_states} states per step "
            f"and the chain is of order {chain.order}: {runs} combinations of neighbours are more "
            f"than {MOST_RUNS}"
        )
    if not chain.start:
        return
    first = math.prod(x.num_values**x.size for x in chain.start)
    if first != chain.num_states or chain.order > 1:
        raise ProgramError(
            f"the latents {[x.name for x in chain.start]} before the scan have {first} states and "
            f"those of a step {chain.num_states}, in a chain of order {chain.order}: a start is "
            "the state before the first step, with as many states, in a chain of order 1"
        )


def _check_plates(site: dict[str, Any], plates: tuple[tuple[str, int, int], ...]) -> None:
    own = {(f.name, f.dim, f.size) for f in site["cond_indep_stack"]}
    missing = [name for name, dim, size in plates if (name, dim, size) not in own]
    if missing:
        raise ProgramError(
            f"site {site['name']!r} depends on the latents of all of the plate {missing[0]!r} at "
            "once: put it inside that plate, as they are"
        )


Depends = dict[str, frozenset]


def _dependence(chain: Chain, f: Callable, init: Any, x: Any) -> tuple[Depends, list[frozenset]]:
    """What each site of a step and each leaf of what it carries depends on."""
    leaves, tree = jax.tree.flatten(init)

    def step(own: dict[str, Array], x: Any, **carried: Array) -> tuple[dict[str, Array], list]:
        carry = jax.tree.unflatten(tree, [carried[f"carry {i}"] for i in range(len(leaves))])
        return _step(chain, f, carry, x, own)

    carried = {f"carry {i}": jnp.asarray(leaf) for i, leaf in enumerate(leaves)}
    return eval_provenance(step, own=chain.values(chain.links, jnp.zeros(1, int)), x=x, **carried)


def _step(
    chain: Chain, f: Callable, carry: Any, x: Any, own: dict[str, Array]
) -> tuple[dict[str, Array], list]:
    trace, (carry, _) = traced(handlers.substitute(f, data=own), carry, x)
    sampled = (x for x in trace.values() if x["type"] == "sample")
    log_probs = {x["name"]: chain.site(x, x["scale"]) for x in sampled}
    return log_probs, jax.tree.leaves(carry)


def _reached(carried: list[frozenset]) -> tuple[int, ...]:
    """The leaves of what is carried that a latent gets into, after however many steps."""
    reached = {f"carry {i}" for i, on in enumerate(carried) if "own" in on}
    for _ in carried:
        reached |= {f"carry {i}" for i, on in enumerate(carried) if on & reached}
    return tuple(i for i in range(len(carried)) if f"carry {i}" in reached)


def _steady(depends: Depends, carried: list[frozenset]) -> tuple[str, ...]:
    """The sites that are the same function of the latents of neighbouring steps at every step."""
    clean = {f"carry {i}" for i in _reached(carried)}
    for _ in carried:
        clean = {x for x in clean if carried[int(x.split()[1])] <= clean | {"own"}}
    return tuple(name for name, on in depends.items() if on <= clean | {"own"})


def _orders(depends: Depends, carried: list[frozenset]) -> dict[str, int]:
    """How many steps back each site of a step looks; a site that depends on no latent is left out.

    `reach` holds the leaves of the carry that a latent has got into after so many steps.
    """
    orders = {name: 0 for name, on in depends.items() if "own" in on}
    reach = {f"carry {i}" for i, on in enumerate(carried) if "own" in on}
    for back in range(1, len(carried) + 2):
        for name, on in depends.items():
            if on & reach:
                if back > len(carried):  # it goes round and round
                    raise ProgramError(
                        f"site {name!r} of the scan depends on the latents of all steps before it: "
                        "carry the latents themselves, each as a leaf of its own, and nothing that "
                        "adds up over them"
                    )
                orders[name] = back
        reach = {f"carry {i}" for i, on in enumerate(carried) if on & reach}
    return orders


class _Provenance(NamedTuple):
    """What depends on the start, on what the scan returns, and on other unobserved sites."""

    sites: Depends  # outside the scan
    init: list[frozenset]  # leaves of the first carry
    inside: frozenset  # the sites of a step, whatever is carried


class _Returning(Messenger):
    """Returns of a scan what it is given, and keeps how the scan was called."""

    def __init__(self, fn: Callable, chain: Chain, returned: Any = None):
        self.chain, self.returned = chain, returned
        self.init: list[Array] = []
        self.inside: dict[str, Array] = {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "control_flow" or not has_latents(msg["args"]):
            return
        f, init, x = first_step(msg["args"])
        if self.returned is None:
            carry, y = jax.eval_shape(lambda: traced(f, init, x)[1])
            length = self.chain.length
            ys = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), y)
            self.returned = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), carry), ys
        self.init = [jnp.asarray(leaf) for leaf in jax.tree.leaves(init)]
        own = self.chain.values(self.chain.links, jnp.zeros(1, int))
        nothing = jax.tree.map(jnp.zeros_like, init)
        self.inside, _ = _step(self.chain, f, nothing, x, own)
        last, ys = self.returned
        msg["value"], msg["stop"] = ((self.chain.length, None, last), (NoSites(), ys)), True


def _provenance(
    model: Callable, chain: Chain, args: tuple, kwargs: dict, trace: dict[str, dict]
) -> _Provenance:
    """Follow the start, what the scan returns, and each other unobserved site ("site NAME") through
    the rest of the program, of which this is the trace."""
    outer = [x["name"] for x in trace.values() if x["type"] in ("sample", "deterministic")]
    # What is random and not a latent of the chain is given: nothing is drawn, nor is it a function.
    fixed = {name: trace[name]["value"] for name in chain.parameters}

    def run(returned: Any, start: dict[str, Array], **given: Array) -> tuple[dict, list, Any]:
        program = _Returning(model, chain, returned)
        values = {name: given[f"site {name}"] for name in fixed}
        outputs = densities(trace_of(program, (args, kwargs), {**values, **start}), outer)
        return outputs, program.init, sum(map(jnp.sum, program.inside.values()), jnp.zeros(()))

    first = _Returning(model, chain)
    trace_of(first, (args, kwargs), fixed)
    start = chain.values(chain.start, jnp.zeros(1, int)) if chain.start else {}
    given = {f"site {name}": value for name, value in fixed.items()}
    sites, init, inside = eval_provenance(run, returned=first.returned, start=start, **given)
    return _Provenance({name: origins(on) for name, on in sites.items()}, init, inside)


def _check_scales(chain: Chain, sites: dict[str, dict], trace: dict[str, dict]) -> None:
    """What scales the scan from outside must scale all of it alike."""
    pairs = [(trace[name]["scale"], sites[name]["scale"]) for name, _ in chain.orders]
    for (name, _), (outer, inner) in zip(chain.orders, pairs, strict=True):
        same = outer is pairs[0][0] and inner is pairs[0][1]
        if not same and all(isinstance(x, int | float | None) for x in (outer, inner, *pairs[0])):
            of = lambda x: 1.0 if x is None else x  # noqa: E731
            same = of(outer) * of(pairs[0][1]) == of(inner) * of(pairs[0][0])
        if not same:
            raise ProgramError(
                f"site {name!r} of the scan is scaled from outside the scan, and others are not: "
                "scale it inside (numpyro.handlers.scale in the step)"
            )
