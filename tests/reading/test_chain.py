"""Hidden Markov chains: sums, posteriors and paths against loops over every path."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import check, density
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions.util import clamp_probs
from numpyro.infer import log_likelihood
from numpyro.infer.util import log_density
from tools import near

from inference import ProgramError, inspect, latent_posterior, marginal, recover
from inference.reading.survey import find_chain

T, N, K = 4, 3, 3
RNG = np.random.default_rng(3)
START = RNG.dirichlet(np.ones(K))
MOVE = RNG.dirichlet(np.ones(K), K)
LEVEL = np.array([-1.0, 0.4, 2.0])
PARAMS = {"move": jnp.asarray(MOVE), "level": jnp.asarray(LEVEL)}
SEEN = RNG.normal(0.5, 1.2, (T + 1, N, 2))
LENGTHS = np.array([4, 2, 3])


def parameters():
    move = numpyro.sample("move", dist.Dirichlet(jnp.ones(K)).expand([K]).to_event(1))
    return move, numpyro.sample("level", dist.Normal(0.0, 2.0).expand([K]).to_event(1))


def single(seen):
    """One sequence and no plate; the state before the first step is 0."""
    move, level = parameters()

    def step(state, y):
        state = numpyro.sample("state", dist.Categorical(move[state]))
        numpyro.sample("seen", dist.Normal(level[state], 0.8), obs=y)
        return state, None

    scan(step, jnp.array(0), seen)


def batched(seen, lengths):
    """Sequences of unequal length in a plate, two columns each, with a start of their own."""
    move, level = parameters()
    with numpyro.plate("sequences", seen.shape[1], dim=-2):
        first = numpyro.sample("first", dist.Categorical(jnp.asarray(START)))
        with numpyro.plate("columns", 2, dim=-1):
            numpyro.sample("begun", dist.Normal(level[first], 0.8), obs=seen[0])

    def step(carry, y):
        state, t = carry
        going = handlers.mask(mask=(t < lengths)[:, None])
        with numpyro.plate("sequences", seen.shape[1], dim=-2), going:
            state = numpyro.sample("state", dist.Categorical(move[state]))
            with numpyro.plate("columns", 2, dim=-1):
                numpyro.sample("seen", dist.Normal(level[state], 0.8), obs=y)
        return (state, t + 1), state

    scan(step, (first, 0), seen[1:])


def log_normal(y, mean):
    return -0.5 * ((y - mean) / 0.8) ** 2 - np.log(0.8 * np.sqrt(2 * np.pi))


def all_paths(log_step, length):
    """Every path with its log probability: `log_step(t, previous, state)` summed."""
    paths = list(itertools.product(range(K), repeat=length))
    logs = [
        sum(log_step(t, path[t - 1] if t else None, path[t]) for t in range(length))
        for path in paths
    ]
    return np.array(paths), np.array(logs)


def by_path(sequence, columns):
    """Paths of `batched` for one sequence: the start, then as many steps as it is long."""

    def log_step(t, previous, state):
        prior = np.log(START[state] if t == 0 else MOVE[previous, state])
        return prior + log_normal(SEEN[t, sequence, :columns], LEVEL[state]).sum()

    return all_paths(log_step, 1 + LENGTHS[sequence])


def log_sum(logs):
    return logs.max() + np.log(np.exp(logs - logs.max()).sum())


def test_one_sequence_as_funsor_has_it():
    """Value and gradient: by the chain, by NumPyro's own enumeration, and by every path."""
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as enumerated

    seen = jnp.asarray(SEEN[:, 0, 0])
    ours = lambda p: log_density(marginal(single), (seen,), {}, p)[0]  # noqa: E731
    theirs = enum(config_enumerate(single), first_available_dim=-1)
    wanted = jax.jit(jax.value_and_grad(lambda p: enumerated(theirs, (seen,), {}, p)[0]))(PARAMS)
    summed = jax.jit(jax.value_and_grad(ours))(PARAMS)
    near(summed[0], wanted[0])
    for site in PARAMS:
        near(summed[1][site], wanted[1][site])

    def log_step(t, previous, state):
        return np.log(MOVE[previous or 0, state]) + log_normal(SEEN[t, 0, 0], LEVEL[state])

    _, logs = all_paths(log_step, T + 1)
    near(by_likelihood(single, seen), log_sum(logs))


def by_likelihood(program, *args, params=PARAMS):
    compute = lambda p: log_likelihood(marginal(program), p, *args, batch_ndims=0)  # noqa: E731
    return jax.jit(compute)(params)["seen"]


@pytest.mark.parametrize("most", [1 << 24, 0], ids=["side by side", "step by step"])
def test_sequences_with_a_start_and_masks(most, monkeypatch):
    monkeypatch.setattr("inference.reading.elimination.MOST_AT_ONCE", most)
    evidence = by_likelihood(batched, jnp.asarray(SEEN), LENGTHS)
    assert evidence.shape == (N,)
    near(evidence, [log_sum(by_path(n, 2)[1]) for n in range(N)])


@pytest.mark.parametrize("length", [1, 5])
def test_steps_after_the_end_add_nothing(length):
    """NumPyro gives each state of a masked latent weight one: log K for every step too many."""
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as enumerated

    def program(seen, lengths):
        move, level = parameters()

        def step(carry, y):
            state, t = carry
            with numpyro.plate("sequences", N), handlers.mask(mask=t < lengths):
                state = numpyro.sample("state", dist.Categorical(move[state]))
                numpyro.sample("seen", dist.Normal(level[state], 0.8), obs=y)
            return (state, t + 1), None

        scan(step, (jnp.zeros(N, int), 0), seen)

    seen, lengths = SEEN[:length, :, 0], np.minimum(LENGTHS, length)

    def paths(n):
        def log_step(t, previous, state):
            return np.log(MOVE[previous or 0, state]) + log_normal(seen[t, n], LEVEL[state])

        return log_sum(all_paths(log_step, lengths[n])[1])

    near(by_likelihood(program, jnp.asarray(seen), lengths), [paths(n) for n in range(N)])
    theirs, arguments = enum(config_enumerate(program), first_available_dim=-2), (seen, lengths)
    wanted = jax.jit(lambda p: enumerated(theirs, arguments, {}, p)[0])(PARAMS)
    found = jax.jit(lambda p: log_density(marginal(program), arguments, {}, p)[0])(PARAMS)
    near(found + (length - lengths).sum() * np.log(K), wanted)


def captures(history, certain):
    """Cormack, Jolly and Seber's model of animals that are met again, masked up to the first time.

    :param certain: that an animal lives up to then, as NumPyro's gallery has it.
    """
    survive = numpyro.sample("survive", dist.Uniform(0.0, 1.0))
    meet = numpyro.sample("meet", dist.Uniform(0.0, 1.0))

    def step(carry, seen):
        met, alive = carry
        with numpyro.plate("animals", len(history)), handlers.mask(mask=met):
            lives = jnp.where(met, survive * alive, 1.0) if certain else survive * alive
            alive = numpyro.sample("alive", dist.Bernoulli(clamp_probs(lives)))
            numpyro.sample("seen", dist.Bernoulli(clamp_probs(meet * alive)), obs=seen)
        return (met | (seen == 1), alive), None

    first = history[:, 0] == 1, jnp.ones(len(history), int)
    scan(step, first, jnp.swapaxes(history[:, 1:], 0, 1))


def textbook(row, survive, meet):
    """Of one animal, given that it was met a first time."""
    alive, dead = 1.0, 0.0
    for seen in row[np.argmax(row) + 1 :]:
        alive, dead = (
            alive * survive * (meet if seen else 1.0 - meet),
            (dead + alive * (1.0 - survive)) * (1.0 - seen),
        )
    return np.log(alive + dead)


def by_definition(row, survive, meet, certain):
    """Over every path: all moves count, and of the sightings those after the first."""
    total = 0.0
    for path in itertools.product((0, 1), repeat=len(row) - 1):
        p, before = 1.0, 1
        for t, alive in enumerate(path, 1):
            met = row[:t].any()
            lives = 1.0 if certain and not met else survive * before
            p *= lives if alive else 1.0 - lives
            if met:
                p *= meet * alive if row[t] else 1.0 - meet * alive
            before = alive
        total += p
    return np.log(total)


@pytest.mark.parametrize("length", [2, 5])
def test_a_mask_on_a_latent_is_not_applied_to_it(length):
    """Against every path; in the form of NumPyro's gallery the likelihood is the textbook's."""
    every = np.array(list(itertools.product((0, 1), repeat=length)))
    history, survive, meet = every[every.any(1)], 0.7, 0.4
    params = {"survive": jnp.array(survive), "meet": jnp.array(meet)}
    for certain in (True, False):
        found = by_likelihood(captures, jnp.asarray(history), certain, params=params)
        near(found, [by_definition(row, survive, meet, certain) for row in history])
        if certain:
            near(found, [textbook(row, survive, meet) for row in history])


def test_paths_come_back():
    """Probabilities, the most probable path and draws, of every sequence and its start."""
    many = 3000
    samples = {name: np.repeat(np.asarray(x)[None], many, 0) for name, x in PARAMS.items()}
    posterior = jax.device_get(
        latent_posterior(random.key(0), marginal(batched), samples, jnp.asarray(SEEN), LENGTHS)
    )
    assert posterior.draws["state"].shape == (many, T, N, 1)
    assert posterior.probabilities["state"].shape == (many, T, N, 1, K)
    for n in range(N):
        paths, logs = by_path(n, 2)
        weight = np.exp(logs - log_sum(logs))
        best = paths[weight.argmax()]
        assert posterior.best["first"][0, n, 0] == best[0]
        np.testing.assert_array_equal(posterior.best["state"][0, : LENGTHS[n], n, 0], best[1:])
        for t in range(1 + LENGTHS[n]):
            name, place = ("state", (t - 1, n, 0)) if t else ("first", (n, 0))
            wanted = [weight[paths[:, t] == k].sum() for k in range(K)]
            near(posterior.probabilities[name][(5, *place)], wanted, 1e-4)
        # Whole paths, so that neighbours are seen to be drawn together.
        steps = [
            posterior.draws["first"][:, n, 0],
            *posterior.draws["state"][:, : LENGTHS[n], n, 0].T,
        ]
        same = (np.stack(steps, -1)[:, None] == paths).all(-1).mean(0)
        assert np.abs(same - weight).max() < 5 * 0.5 / np.sqrt(many)


def test_the_handler_runs_the_scan_on_the_recovered_path():
    program = handlers.substitute(recover(batched, best=True), data=PARAMS)

    def run(seen):
        trace = handlers.trace(program).get_trace(seen, LENGTHS)
        return {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}

    sites = jax.jit(run)(jnp.asarray(SEEN))
    assert set(sites) == {"move", "level", "first", "begun", "state", "seen"}
    paths, logs = by_path(0, 2)
    np.testing.assert_array_equal(sites["state"][:, 0, 0], paths[logs.argmax()][1:])


def test_second_order_and_two_latents_a_step():
    """A step that looks two back, with a bit and a category; from the end to the beginning too."""

    def program(seen, reverse):
        _, level = parameters()

        def step(carry, y):
            before, last = carry
            flip = numpyro.sample("flip", dist.Bernoulli(jnp.where(before == 1, 0.7, 0.2)))
            odds = jnp.array([[0.5, 0.5], [0.9, 0.1]])[last]
            kind = numpyro.sample("kind", dist.Categorical(odds))
            numpyro.sample("seen", dist.Normal(level[flip + kind], 0.8), obs=y)
            return (last, flip), None

        scan(step, (jnp.array(0), jnp.array(0)), seen, reverse=reverse)

    backwards, ahead = partial(program, reverse=True), partial(program, reverse=False)
    turned = jnp.asarray(SEEN[:, 1, 1])
    seen = turned[::-1]
    latents = {"flip": ((T + 1,), 2), "kind": ((T + 1,), 2)}
    for model in (backwards, ahead):
        assert dict(find_chain(model, (seen,), {}).orders) == {"flip": 2, "kind": 1, "seen": 0}
    values, logs = check(ahead, (seen,), PARAMS, latents)
    best = values["flip"][logs.argmax()]
    assert best.tolist() != best[::-1].tolist()
    # NumPyro gives a scan its values in the order of its steps, whichever rows these have.
    near(density(backwards, (turned,), PARAMS), np.logaddexp.reduce(logs))
    given_back = handlers.substitute(recover(backwards, best=True), data=PARAMS)
    recovered = jax.jit(lambda y: handlers.trace(given_back).get_trace(y)["flip"]["value"])(turned)
    np.testing.assert_array_equal(recovered, best[::-1])


def test_a_minibatch_of_sequences_is_scaled():
    def program(seen):
        move, level = parameters()

        def step(state, y):
            with numpyro.plate("sequences", 30, subsample_size=N):
                state = numpyro.sample("state", dist.Categorical(move[state]))
                numpyro.sample("seen", dist.Normal(level[state], 0.8), obs=y)
            return state, None

        scan(step, jnp.zeros(N, int), seen)

    seen = jnp.asarray(SEEN[..., 0])
    each = by_likelihood(program, seen)
    whole = jax.jit(lambda p: log_density(marginal(program), (seen,), {}, p)[0])(PARAMS)
    prior = sum(dist.Normal(0.0, 2.0).log_prob(LEVEL)) + K * np.log(2.0)
    near(whole, 10.0 * each.sum() + prior)


def test_a_count_of_steps_may_be_used_after_the_scan():
    """It depends on no latent, as does what is observed with it."""

    def program(seen):
        move, level = parameters()

        def step(carry, y):
            state, count = carry
            state = numpyro.sample("state", dist.Categorical(move[state]))
            numpyro.sample("seen", dist.Normal(level[state], 0.8), obs=y)
            return (state, count + 1), None

        (_, count), _ = scan(step, (jnp.array(0), 0), seen)
        numpyro.sample("late", dist.Normal(0.1 * count, 1.0), obs=0.3)

    seen = jnp.asarray(SEEN[:, 0, 0])
    assert find_chain(program, (seen,), {}).other == ("late",)
    near(by_likelihood(program, seen), by_likelihood(single, seen))


def broken(what):
    def program(seen):
        move, level = parameters()
        kind = numpyro.sample("kind", dist.Categorical(jnp.ones(K) / K)) if what == "class" else 0

        def step(carry, y):
            state, total = carry
            shift = {"class": 0.1 * kind, "sum": 0.1 * total}.get(what, 0.0)
            state = numpyro.sample("state", dist.Categorical(move[state]))
            if what == "continuous":
                shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
            numpyro.sample("seen", dist.Normal(level[state] + shift, 0.8), obs=y)
            return (state, total + state), None

        last, _ = scan(step, (jnp.array(0), jnp.array(0)), seen)
        if what == "after":
            numpyro.sample("late", dist.Normal(level[last[0]], 1.0), obs=0.3)

    return program


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("class", "act on more than its first step"),
        ("sum", "depends on the latents of all steps before it"),
        ("continuous", "'shift' of the scan is continuous"),
        ("after", "'late' depends on what the scan returns"),
    ],
)
def test_what_is_no_chain_is_refused(what, words):
    with pytest.raises(ProgramError, match=words):
        find_chain(broken(what), (jnp.zeros(4),), {})
    with pytest.raises(ProgramError, match="a latent of a scan"):
        inspect(broken("none"), (jnp.zeros(4),))
