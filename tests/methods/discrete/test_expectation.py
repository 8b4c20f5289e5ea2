"""The E-step of exact and truncated EM against the oracle's full tables, on every program."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import oracle
import pytest
from jax import lax, random
from small_programs import CASES, NUM_DATA
from tools import ROUNDED, close, in_double, knowing, reader_of, update_once

from inference import (
    EM,
    AllStates,
    Given,
    Persistent,
    Structure,
    TruncatedEM,
)
from inference.methods.discrete.candidates import Candidates
from inference.methods.shared import Chunk
from inference.numerics.log_sums import best_bits
from ppl_models import binary_sparse_coding

# The form that is found of each kind, one above it that holds as well, and bits of two sites.
READ = [
    pytest.param(name, Structure[structure], id=f"{name}-{structure}")
    for name, structure in (
        ("sparse_coding", "SHARED"),
        ("sparse_coding", "PER_DATUM"),
        ("sparse_coding_masked", "PER_DATUM"),
        ("combination_machine", "LINEAR"),
        ("combination_machine", "GENERAL"),
        ("noisy_or", "GENERAL"),
        ("two_sites", "GENERAL"),
    )
]


@in_double
@pytest.mark.parametrize(("name", "structure"), READ)
def test_expectation_is_the_posterior(name, structure):
    """Evidence, mean and second moments: all states, and the candidates of the default ranking."""
    case = CASES[name]
    reader, _ = reader_of(case, structure)
    table, states = case.table()
    alone = np.array([table[states @ (1 << np.arange(4)) == 1 << h][0] for h in range(4)]).T
    kept = [oracle.candidate_states(scores, 3, 2) for scores in alone]
    weights = np.linspace(0.5, 2.0, NUM_DATA)

    @jax.jit
    def compute(params):
        out = []
        for sets in (Candidates(4, 4), Candidates(3, 2)):
            posterior = sets.expect(Chunk(reader, params, case.arguments))
            out.append(
                (
                    posterior.evidence,
                    posterior.mean,
                    posterior.second(jnp.asarray(weights)),
                    posterior.best(),
                )
            )
        return out

    full, truncated = compute(case.typed())
    for read, wanted in ((full, table), (truncated, oracle.truncate_table(table, states, kept))):
        posterior = oracle.posterior_table(wanted)
        second = oracle.posterior_second_moments(posterior, states)
        close(read[0], oracle.log_evidence(wanted))
        close(read[1], oracle.posterior_mean(posterior, states))
        close(read[2], np.einsum("n,nhk->hk", weights, second))
        np.testing.assert_array_equal(read[3], states[wanted.argmax(0)])


@in_double
def test_candidates_by_the_papers_selection():
    case = CASES["sparse_coding"]

    def select(params, data, **_):
        weights = params["weights"]
        return data @ weights.T / jnp.sqrt((weights**2).sum(1))

    reader, _ = reader_of(case)
    sets = Candidates(3, 2, select)
    evidence = jax.jit(lambda p: sets.expect(Chunk(reader, p, case.arguments)).evidence)
    table, states = case.table()
    scores = [oracle.selection_scores(case.params["weights"], datum) for datum in case.data]
    kept = [oracle.candidate_states(score, 3, 2) for score in scores]
    wanted = oracle.log_evidence(oracle.truncate_table(table, states, kept))
    close(evidence(case.typed()), wanted)


def test_impossible_bits_are_chosen_once():
    """A score of minus infinity still ranks above a bit that was taken: no state counts twice."""
    some = random.randint(random.key(0), (20, 23), 0, 9).astype(float)  # many are equal
    impossible = jnp.full((2, 23), -jnp.inf).at[0, 1].set(0.0)
    scores = jnp.concatenate([impossible, some, jnp.where(some < 6, -jnp.inf, some)])
    chosen = np.asarray(jax.jit(lambda x: best_bits(x, 7))(scores))
    assert all(len(set(row)) == 7 for row in chosen)
    by_sort = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(chosen, by_sort)


def test_bits_impossible_alone():
    """Causes that cannot explain a datum alone, but can together."""

    def both_needed(data, *, num_causes):
        with numpyro.plate("data", len(data)):
            on = numpyro.sample("on", dist.Bernoulli(jnp.full(num_causes, 0.3)).to_event(1))
            pairs = on[..., :-1] * on[..., 1:]
            probability = jnp.where(pairs > 0, 0.9, 0.0)
            numpyro.sample("seen", dist.Bernoulli(probability).to_event(1), obs=data)

    data = jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    method = TruncatedEM(
        both_needed, max_active=2, num_candidates=3, keep=False, structure=Structure.GENERAL
    )
    posterior = method.posterior({}, data, num_causes=4)
    # Of three candidates the first is a tie of impossible bits; the evidence is over distinct ones.
    assert np.isfinite(posterior.evidence[0])
    close(posterior.evidence[0], math.log(0.3**2 * 0.7**2 * 0.9), ROUNDED)


@in_double
def test_a_table_per_datum_goes_with_its_chunk():
    case = CASES["sparse_coding"]
    table, states = case.table()
    rng = np.random.default_rng(3)
    chosen = np.stack([rng.choice(16, 6, replace=False) for _ in range(NUM_DATA)], axis=1)
    wanted = np.take_along_axis(table, chosen, axis=0)
    args, kwargs = case.arguments
    method = knowing(EM(case.model, Given(states[chosen]), chunk_size=3), case)
    posterior = method.posterior(case.typed(), *args, **kwargs)
    close(posterior.evidence, oracle.log_evidence(wanted))
    assert np.isnan(posterior.missed).all()
    new, loss = update_once(method, case)
    close(loss, -oracle.log_evidence(wanted).sum())
    assert np.isfinite(new["weights"]).all()


def test_truncated_with_all_states_misses_nothing():
    case = CASES["max_of_causes"]
    args, kwargs = case.arguments
    every = knowing(TruncatedEM(case.model, max_active=4, num_candidates=4), case)
    posterior = every.posterior(case.typed(), *args, **kwargs)
    np.testing.assert_array_equal(posterior.missed, 0.0)
    close(posterior.evidence, oracle.log_evidence(case.table()[0]), ROUNDED)


@pytest.mark.parametrize("structure", [Structure.SHARED, Structure.GENERAL])
def test_missed_mass_is_estimated_also_far_from_the_set(structure):
    """Two large causes that nearly cancel: each alone is bad, so that no candidate is either.

    Half of the rows have them both; the others have one cause and miss little. Of 40 causes the 30
    in the middle are too large for any row, so that the true missed mass is known by enumeration
    of the other 10.
    """
    rng = np.random.default_rng(0)
    weights = rng.normal(0.0, 1.0, (40, 8))
    weights[8:-1] *= 20.0
    weights[-1] = rng.normal(0.0, 1.5, 8) - weights[-2]
    causes = np.eye(40)[np.arange(NUM_DATA) % 3]
    causes[::2, -2:] = 1.0
    params = {"weights": weights, "noise": 0.5, "sparsity": 0.2}
    data = causes @ weights + rng.normal(0.0, 0.5, (NUM_DATA, 8))
    few = {**params, "weights": weights[[*range(8), -2, -1]]}
    table = oracle.log_joint_table(
        oracle.log_joint_binary_sparse_coding, few, {"causes": oracle.all_states(10)}, data
    )
    whole = oracle.log_evidence(table) + 30 * math.log(1.0 - params["sparsity"])
    method = TruncatedEM(
        binary_sparse_coding, max_active=2, num_candidates=3, keep=False, structure=structure
    )
    typed = {name: jnp.asarray(value, float) for name, value in params.items()}
    data = jnp.asarray(data, float)
    posterior = jax.jit(lambda x: method.posterior(typed, x, num_causes=40))(data)
    missed, error = np.asarray(posterior.missed), np.asarray(posterior.missed_error)
    true = -np.expm1(np.asarray(posterior.evidence) - whole)
    assert (true[::2] > 0.7).all() and (true[1::2] < 0.5).all()
    assert (missed <= true + 5.0 * error + 1e-3).all()  # it is a lower estimate
    assert (np.abs(missed - true) <= 0.05).all()


def test_missed_mass_is_proved_to_lie_between_two_shares():
    rng = np.random.default_rng(3)
    causes = (rng.random((NUM_DATA, 12)) < 0.2).astype(float)
    params = {"weights": rng.normal(0.0, 2.0, (12, 20)), "noise": 1.0, "sparsity": 0.2}
    data = causes @ params["weights"] + rng.normal(0.0, 1.0, (NUM_DATA, 20))
    table = oracle.log_joint_table(
        oracle.log_joint_binary_sparse_coding, params, {"causes": oracle.all_states(12)}, data
    )
    method = TruncatedEM(binary_sparse_coding, max_active=1, num_candidates=2)
    found = method.posterior(params, data, num_causes=12, width=0.01)
    least, most = found.missed_between.T
    true = -np.expm1(np.asarray(found.evidence) - oracle.log_evidence(table))
    assert 0.1 < true.mean() < 0.99
    assert (least <= true).all() and (true <= most).all() and (most - least).max() < 0.01


def overlapping():
    """Causes that share one strong direction: alone, each looks as good as any other."""
    rng = np.random.default_rng(8)
    num_causes, columns = 8, 6
    weights = 3.0 + rng.normal(0.0, 1.0, (num_causes, columns))
    causes = np.zeros((NUM_DATA, num_causes))
    for n in range(NUM_DATA):
        causes[n, rng.choice(num_causes, 4, replace=False)] = 1.0
    params = {"weights": weights, "noise": 0.5, "sparsity": 0.5}
    return params, causes @ weights + rng.normal(0.0, 0.5, (NUM_DATA, columns))


def test_persistent_sets_find_what_candidates_miss():
    params, data = overlapping()
    states = oracle.all_states(8)
    table = oracle.log_joint_table(
        oracle.log_joint_binary_sparse_coding, params, {"causes": states}, data
    )
    exact = oracle.log_evidence(table)
    params = {name: jnp.asarray(value, float) for name, value in params.items()}
    data = jnp.asarray(data)
    form = Structure.SHARED
    narrow = TruncatedEM(binary_sparse_coding, max_active=4, num_candidates=5, structure=form)
    # As many states as the candidates have: 31 of five bits with at most four on, and 8 alone.
    as_many = Persistent(31 + 8, 32)
    lists = TruncatedEM(binary_sparse_coding, persistent=as_many, structure=form)
    chosen, kept = (
        jax.jit(lambda x, m=method: m.posterior(params, x, num_causes=8, num_draws=64))(data)
        for method in (narrow, lists)
    )
    assert (exact - kept.evidence >= -1e-3).all()
    assert np.max(exact - kept.evidence) < 0.05
    assert np.max(exact - chosen.evidence) > 1.0
    np.testing.assert_array_equal(kept.best, states[table.argmax(0)])


@in_double
def test_states_found_by_what_flips_gain_have_the_values_of_the_program():
    """After four rounds they have the mass of the six best, or all but a fiftieth, each once."""
    case, sets = CASES["sparse_coding"], Persistent(6, 9)
    reader, _ = reader_of(case, Structure.SHARED)
    memory = sets.start(reader.anatomy, random.key(0))
    keys = random.split(random.key(1), (4, NUM_DATA))

    @jax.jit
    def search(memory, params):
        def turn(memory, keys):
            return sets.search(Chunk(reader, params, case.arguments), memory, keys)[::-1]

        return lax.scan(turn, memory, keys)

    memory, evidence = search(memory, case.typed())
    table, states = case.table()
    place = {number: i for i, number in enumerate(states @ (1 << np.arange(4)))}
    for row, kept in enumerate(np.asarray(memory) @ (1 << np.arange(4))):
        values = table[[place[number] for number in set(kept)], row]
        close(evidence[-1, row], np.logaddexp.reduce(values))
        assert evidence[-1, row] > np.logaddexp.reduce(np.sort(table[:, row])[-6:]) - 0.02


@pytest.mark.parametrize("by_row", [False, True])
def test_the_posterior_of_a_category_gives_each_value_its_probability(by_row):
    """Three values and two bits: by hand from the joint over all twelve states."""
    rng = np.random.default_rng(3)
    share, rate, prior = rng.dirichlet(np.ones(3)), rng.random((3, 2, 2)), rng.random(2)
    data = (rng.random((5, 2)) < 0.5).astype(np.float32)

    def program(data):
        weights = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("data", len(data)):
            group = numpyro.sample("group", dist.Categorical(weights))
            bits = numpyro.sample("bits", dist.Bernoulli(jnp.asarray(prior)).to_event(1))
            chosen = jnp.asarray(rate)[group[..., None], jnp.arange(2), bits]
            numpyro.sample("seen", dist.Bernoulli(chosen).to_event(1), obs=data)

    states = np.array([(g, a, b) for g in range(3) for a in range(2) for b in range(2)])
    joint = np.zeros((len(data), len(states)))
    for n, row in enumerate(data):
        for s, (g, *bits) in enumerate(states):
            joint[n, s] = share[g]
            for d in range(2):
                p = rate[g, d, bits[d]]
                joint[n, s] *= (prior[d] if bits[d] else 1 - prior[d]) * (p if row[d] else 1 - p)
    joint /= joint.sum(1, keepdims=True)
    shown = np.repeat(states[:, None], len(data), 1) if by_row else None
    table = AllStates() if shown is None else Given(jnp.asarray(shown))
    probs = EM(program, table).posterior({"share": jnp.asarray(share)}, data).probabilities
    wanted = np.stack([joint[:, states[:, 0] == k].sum(1) for k in range(3)], -1)
    np.testing.assert_allclose(probs["group"], wanted, atol=1e-5)
    ones = joint @ states[:, 1:]
    np.testing.assert_allclose(probs["bits"], np.stack([1 - ones, ones], -1), atol=1e-5)
