"""Copies of the trait programs under other names take the closed forms of ours, to rounding."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from tools import close, in_double, quick_run

from inference import BoundEM, QuadratureEM, standard_errors
from inference.evaluation.symmetry import align_to, form_of
from inference.methods.continuous.factor_em import canonical
from inference.methods.continuous.opening import open_columns
from inference.reading.recognition.papers import Form
from ppl_models import clipped_gaussian, latent_trait, mixed_trait
from ppl_models.distributions import ClippedNormal

RNG = np.random.default_rng(0)
NUM_DATA = 60
SKILL = RNG.normal(size=(NUM_DATA, 2))
LOGITS = SKILL @ RNG.normal(0.0, 1.3, (2, 6)) + RNG.normal(0.0, 0.5, 6)
BITS = (RNG.random(LOGITS.shape) < 1 / (1 + np.exp(-LOGITS))).astype(float)
ANSWERED = RNG.random(BITS.shape) < 0.9
KINDS = (3, "real", "binary", 4, "binary", "real")


def exam(table, answered=None, *, traits=2):
    """A latent trait: items by traits, easiness, and other priors."""
    items = table.shape[1]
    load = numpyro.sample("load", dist.Laplace(0.0, 2.0).expand((items, traits)).to_event(2))
    easy = numpyro.sample("easy", dist.StudentT(4.0, 0.0, 3.0).expand((items,)).to_event(1))
    with numpyro.plate("students", len(table)):
        skill = numpyro.sample("skill", dist.Normal(jnp.zeros(traits), 1.0).to_event(1))
        right = dist.Bernoulli(probs=1 / (1 + jnp.exp(-(skill @ load.T + easy))))
        right = right if answered is None else right.mask(answered)
        numpyro.sample("right", right.to_event(1), obs=table)


def survey(numbers, ticks, choices, *, traits=2):
    """Mixed columns in arguments of their own, weights by kind, a site for each choice."""

    def line(name, size):
        normal = dist.Normal(0.0, 3.0)
        load = numpyro.sample(f"{name}_load", normal.expand((size, traits)).to_event(2))
        return load, numpyro.sample(f"{name}_at", normal.expand((size,)).to_event(1))

    (ticked, often), (sized, about) = line("tick", 2), line("number", 2)
    chosen = [line(f"choice_{levels}", levels - 1) for levels in (3, 4)]
    spread = numpyro.sample("spread", dist.LogNormal(0.0, 1.0).expand((2,)).to_event(1))
    with numpyro.plate("people", len(ticks)):
        x = numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(traits), jnp.eye(traits)))
        numpyro.sample("ticks", dist.Bernoulli(logits=x @ ticked.T + often).to_event(1), obs=ticks)
        numpyro.sample("numbers", dist.Normal(x @ sized.T + about, spread).to_event(1), obs=numbers)
        for place, (load, at) in enumerate(chosen):
            logits = x @ load.T + at
            logits = jnp.concatenate([jnp.zeros_like(logits[..., :1]), logits], -1)
            column = choices[:, place]
            numpyro.sample(f"choice {place}", dist.Categorical(logits=logits), obs=column)


def mixed_data():
    rng = np.random.default_rng(1)
    numbers = SKILL @ rng.normal(size=(2, 2)) + rng.normal(0.3, 0.7, (NUM_DATA, 2))
    choices = rng.integers(0, [3, 4], (NUM_DATA, 2))
    table = np.column_stack(
        [choices[:, 0], numbers[:, 0], BITS[:, 0], choices[:, 1], BITS[:, 1], numbers[:, 1]]
    )
    return (numbers, BITS[:, :2], choices), table


def run(method, *args, **kwargs):
    """Three steps from the default start: parameters and losses."""
    fitted = quick_run(method, 3, 3, *args, **kwargs)
    return fitted.params, fitted.losses


@in_double
def test_copies_of_the_trait_are_fitted_as_ours():
    """With a mask by another name: start, steps and rotation. By the bound: the mixed one below."""
    opened = open_columns(exam, (BITS, ANSWERED), {}, None)
    assert opened.known.form is Form.TRAIT and opened.columns is not None
    params, losses = run(QuadratureEM(exam, num_nodes=5), BITS, ANSWERED)
    wanted, others = run(QuadratureEM(latent_trait, num_nodes=5), BITS, mask=ANSWERED)
    # The copy computes its logits by way of probabilities.
    close(losses, others, 1e-8)
    close(params["load"].T, wanted["weights"], 1e-6)
    close(params["easy"], wanted["bias"], 1e-6)


@in_double
def test_copies_of_the_mixed_trait_are_fitted_as_ours():
    parts, table = mixed_data()
    opened = open_columns(survey, parts, {}, None)
    assert opened.columns.kinds == ("real", "real", "binary", "binary", 3, 4)
    params, losses = run(BoundEM(survey), *parts)
    wanted, others = run(BoundEM(mixed_trait), table, kinds=KINDS)
    close(losses, others, 1e-8)
    close(params["spread"], wanted["noise"], 1e-6)
    close(params["tick_load"].T, wanted["weights"][:, 2:4], 1e-6)
    close(params["choice_4_at"], wanted["bias"][-3:], 1e-6)


def test_rows_and_columns_of_copies_are_refused_by_number():
    bad = BITS.copy()
    bad[3, 2] = 2.0
    with pytest.raises(ValueError, match="row 3, column 2 holds 2"):
        BoundEM(exam).init(random.key(0), bad, np.ones_like(ANSWERED))
    (numbers, ticks, choices), _ = mixed_data()
    with pytest.raises(ValueError, match=r"argument 2, column 1 is 0 in every row"):
        BoundEM(survey).init(random.key(0), numbers, ticks * [1.0, 0.0], choices)


def test_errors_and_alignment_of_copies_are_ours():
    rng = np.random.default_rng(2)
    ours = {"weights": rng.normal(0.0, 1.0, (2, 6)), "bias": rng.normal(0.0, 0.3, 6)}
    ours = {x: np.asarray(v) for x, v in canonical(ours).items()}
    theirs = {"load": ours["weights"].T, "easy": ours["bias"]}
    with pytest.warns(UserWarning, match="not determined"):  # not at a maximum: nothing is known
        errors = standard_errors(exam, theirs, BITS, num_nodes=7)
    assert np.isnan(errors["load"]).all() and errors["load"].shape == (6, 2)

    turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    moved = {"load": (turn @ ours["weights"]).T, "easy": ours["bias"]}
    back = align_to(exam, moved, theirs, ((BITS,), {}))
    close(back["load"], theirs["load"], 1e-12)


# --- near misses


def bent(table, *, traits=1):
    """A trait whose logits bend with the skill."""
    load = numpyro.sample("load", dist.Normal(0.0, 1.0).expand((table.shape[1], 1)).to_event(2))
    easy = numpyro.sample("easy", dist.Normal(0.0, 1.0).expand((table.shape[1],)).to_event(1))
    with numpyro.plate("students", len(table)):
        skill = numpyro.sample("skill", dist.Normal(0.0, 1.0).expand((traits,)).to_event(1))
        line = skill @ load.T + easy
        numpyro.sample("right", dist.Bernoulli(logits=line + 0.05 * line**2).to_event(1), obs=table)


def wide(table):
    """A trait whose skills have a spread of their own."""
    load = numpyro.sample("load", dist.Normal(0.0, 1.0).expand((table.shape[1], 1)).to_event(2))
    easy = numpyro.sample("easy", dist.Normal(0.0, 1.0).expand((table.shape[1],)).to_event(1))
    with numpyro.plate("students", len(table)):
        skill = numpyro.sample("skill", dist.Normal(0.0, 2.0).expand((1,)).to_event(1))
        numpyro.sample("right", dist.Bernoulli(logits=skill @ load.T + easy).to_event(1), obs=table)


def lifted(load_prior):
    """A trait with this prior of its loadings."""

    def program(table):
        size = table.shape[1]
        load = numpyro.sample("load", load_prior(size))
        easy = numpyro.sample("easy", dist.Normal(0.0, 1.0).expand((size,)).to_event(1))
        with numpyro.plate("students", len(table)):
            skill = numpyro.sample("skill", dist.Normal(0.0, 1.0).expand((1,)).to_event(1))
            logits = skill * load + easy
            numpyro.sample("right", dist.Bernoulli(logits=logits).to_event(1), obs=table)

    return program


def test_near_misses_are_not_recognised():
    assert form_of(bent, ((BITS,), {})) is None
    assert form_of(wide, ((BITS,), {})) is None
    positive = lifted(lambda size: dist.HalfNormal(1.0).expand((size,)).to_event(1))
    assert form_of(positive, ((BITS,), {})) is None


def test_coupled_priors_take_no_closed_step():
    """The closed M-step with a prior wants one for each number; without a prior it does not ask."""
    cover = 0.5 * np.eye(6) + 0.5
    coupled = lifted(lambda size: dist.MultivariateNormal(jnp.zeros(size), cover[:size, :size]))
    assert open_columns(coupled, (BITS,), {}, None).columns is not None
    assert open_columns(coupled, (BITS,), {}, None, prior=True).columns is None
    assert open_columns(exam, (BITS,), {}, None, prior=True).columns is not None


def test_probit_copies_rotate():
    def signs(table):
        load = numpyro.sample("load", dist.Normal(0.0, 1.0).expand((6, 2)).to_event(2))
        easy = numpyro.sample("easy", dist.Normal(0.0, 1.0).expand((6,)).to_event(1))
        with numpyro.plate("rows", len(table)):
            x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
            numpyro.sample("sign", ClippedNormal(x @ load.T + easy, 1.0).to_event(1), obs=table)

    own = form_of(clipped_gaussian, ((BITS,), {"num_factors": 2}))
    assert form_of(signs, ((BITS,), {})).form is own.form is Form.CLIPPED
