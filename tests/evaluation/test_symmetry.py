"""Parameters that the likelihood cannot tell apart are brought together, and counted."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import log_density
from scipy.special import multigammaln
from scipy.stats import multivariate_normal
from tools import close, in_double

from inference.evaluation.symmetry import align, align_to, form_of, group_of
from inference.files.cards import example
from inference.reading.anatomy import ProgramError, inspect
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    latent_trait,
    noisy_or_network,
)

LAYERS = {"layers": (3, 2)}
BITS = (np.random.default_rng(0).random((6, 5)) < 0.5).astype(np.float32)


def exam(table, *, traits=2):
    """A latent trait under other names, items by traits."""
    items = table.shape[1]
    load = numpyro.sample("load", dist.Normal(0.0, 2.0).expand((items, traits)).to_event(2))
    easy = numpyro.sample("easy", dist.Normal(0.0, 3.0).expand((items,)).to_event(1))
    with numpyro.plate("students", len(table)):
        skill = numpyro.sample("skill", dist.Normal(0.0, 1.0).expand((traits,)).to_event(1))
        numpyro.sample("right", dist.Bernoulli(logits=skill @ load.T + easy).to_event(1), obs=table)


def test_alignment_undoes_what_the_likelihood_cannot_see():
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(2, 2)))
    weights = rng.normal(size=(2, 7))
    turned = {"weights": (turn @ weights)[None, None], "bias": np.zeros((1, 1, 7))}
    wanted = {"weights": weights, "bias": np.zeros(7)}
    aligned = align_to(latent_trait, turned, wanted, ((np.eye(7),), {}))
    np.testing.assert_allclose(aligned["weights"][0, 0], weights, atol=1e-12)
    made = example("bernoulli_mixture", 80, which="small")
    order = [2, 0, 1]
    mixed = {"probs": made.truth["probs"][order], "mixing": made.truth["mixing"][order]}
    back = align_to(bernoulli_mixture, mixed, made.truth, ((made.values,), made.sizes))
    np.testing.assert_array_equal(back["probs"], made.truth["probs"])
    np.testing.assert_array_equal(back["mixing"], made.truth["mixing"])


# --- a user's own draws


@in_double
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (latent_trait, {"num_factors": 3, "guessing": True}),
        (latent_trait, {"num_factors": 1}),
        (exam, {}),
        (noisy_or_network, LAYERS),
        (bernoulli_mixture, {"num_components": 3}),
        (binary_sparse_coding, {"num_causes": 3}),
    ],
)
def test_aligned_draws_have_the_joint_density_of_those_they_were(model, sizes):
    """Of parameters, latents and data, so the latents moved as the parameters did."""
    rng = np.random.default_rng(1)
    shapes = form_of(model, ((BITS,), sizes)).shapes
    draws = {x: rng.uniform(0.1, 0.9, (4, *shape)) for x, shape in shapes.items()}
    for name in {"weights", "load"} & set(draws):
        draws[name][:2] *= -1
    if "mixing" in draws:
        draws["mixing"] /= draws["mixing"].sum(-1, keepdims=True)
    for site in inspect(model, (BITS,), sizes).latents:
        normal = rng.normal(size=(4, *site.shape))
        whole = rng.integers(0, site.num_values or 1, (4, *site.shape))
        draws[site.name] = normal if site.num_values is None else whole
    draws["logits"] = np.arange(4.0)  # a deterministic site
    chains = {x: v.reshape(2, 2, *v.shape[1:]) for x, v in draws.items()}
    aligned = align(chains, model, BITS, **sizes)
    flat = align(draws, model, BITS, **sizes)
    joint = jax.jit(jax.vmap(lambda x: log_density(model, (BITS,), sizes, x)[0]))
    close(joint(flat), joint(draws))
    for name, value in draws.items():
        assert aligned[name].shape == chains[name].shape and flat[name].dtype == value.dtype
        close(flat[name].ravel(), aligned[name].ravel())
    np.testing.assert_array_equal(flat["logits"], draws["logits"])
    assert any(not np.allclose(flat[x], draws[x]) for x in draws)
    # Any image of a draw is brought to the same place.
    reference = {x: v[0] for x, v in flat.items()}
    again = align(draws, model, BITS, reference=reference, **sizes)
    for name in draws:
        close(again[name][0], flat[name][0])


def test_draws_that_cannot_be_aligned_are_refused_by_name():
    def other(data):
        slope = numpyro.sample("slope", dist.Normal())
        with numpyro.plate("rows", len(data)):
            x = numpyro.sample("x", dist.Gamma(2.0, 2.0))
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=data)

    def apart(table):
        load = numpyro.sample("load", dist.Normal(0.0, 2.0).expand((2, 5)).to_event(2))
        easy = numpyro.sample("easy", dist.Normal(0.0, 3.0).expand((5,)).to_event(1))
        with numpyro.plate("students", len(table)):
            x, y = (numpyro.sample(name, dist.Normal()) for name in "xy")
            logits = jnp.stack([x, y], -1) @ load + easy
            numpyro.sample("right", dist.Bernoulli(logits=logits).to_event(1), obs=table)

    with pytest.raises(ProgramError, match="no symmetry of the program 'other' is known"):
        align({"slope": np.zeros(3)}, other, np.zeros(4, np.float32))
    draws = {"weights": np.zeros((3, 2, 5)), "bias": np.zeros((3, 5))}
    with pytest.raises(ProgramError, match="site 'bias' of `draws` is missing"):
        align({"weights": draws["weights"]}, latent_trait, BITS)
    with pytest.raises(ProgramError, match=r"'bias' of `draws` has shape \(5,\)"):
        align({x: v[0] for x, v in draws.items()}, latent_trait, BITS)
    with pytest.raises(ProgramError, match=r"'weights' of `draws` has shape \(3, 2, 5\)"):
        align({**draws, "bias": np.zeros((2, 5))}, latent_trait, BITS)
    with pytest.raises(ProgramError, match=r"'bias' of `reference` has shape \(3, 5\)"):
        align(draws, latent_trait, BITS, reference=draws)
    rng = np.random.default_rng(0)
    split = {"load": rng.normal(size=(3, 2, 5)), "easy": np.zeros((3, 5)), "x": np.zeros((3, 6))}
    with pytest.raises(ProgramError, match="in the sites x, y, which one rotation"):
        align(split, apart, BITS)
    del split["x"]
    likeness = np.einsum("skd,sld->skl", *(align(split, apart, BITS)["load"],) * 2)
    close(np.sort(np.linalg.eigvalsh(likeness)), np.linalg.eigvalsh(
        np.einsum("skd,sld->skl", split["load"], split["load"])))  # fmt: skip


# --- the symmetries of a posterior


def wishart(precision, power):
    """log of exp(−½ tr W S Wᵀ) |W Wᵀ|ᵖ of the weights and of standard normal biases."""

    def log_prob(params):
        weights = params["weights"] if "weights" in params else params["load"].T
        bias = params["bias"] if "bias" in params else params["easy"]
        fit = jnp.einsum("kd,de,ke", weights, precision, weights) + (bias**2).sum()
        return power * jnp.linalg.slogdet(weights @ weights.T)[1] - 0.5 * fit

    return log_prob


@in_double
@pytest.mark.parametrize(
    ("model", "num_factors", "num_columns", "power"),
    [(latent_trait, 2, 2, 0.0), (exam, 2, 3, 0.0), (latent_trait, 3, 3, 2.0)],
)
def test_an_integral_over_the_slice_times_the_volume_of_rotations_is_that_over_all(
    model, num_factors, num_columns, power
):
    """A density whose integral is known, by Gaussian draws on the slice: five standard errors."""
    rng = np.random.default_rng(1)
    name = "num_factors" if model is latent_trait else "traits"
    known = form_of(model, ((BITS[:, :num_columns],), {name: num_factors}))
    root = rng.normal(size=(num_columns, num_columns))
    precision = root @ root.T + np.eye(num_columns)
    weights = rng.normal(size=(num_factors, num_columns))
    if power:  # a mode
        weights = math.sqrt(2 * power) * np.linalg.inv(np.linalg.cholesky(precision))
    zeros = np.zeros(num_columns)
    ours = model is latent_trait
    center = {"weights": weights, "bias": zeros} if ours else {"load": weights.T, "easy": zeros}
    log_prob = wishart(precision, power)
    group = group_of(known, log_prob, center)
    assert group.words == f"{num_factors} factors may be rotated"
    close(group.log_size, math.log({2: 2 * 2 * math.pi, 3: 2 * 8 * math.pi**2}[num_factors]))

    origin, unravel = ravel_pytree(center)
    tangents = np.asarray(group.generators(center))
    assert tangents.shape == (num_factors * (num_factors - 1) // 2, len(origin))
    basis, along = np.split(np.linalg.qr(tangents.T, mode="complete")[0], [len(tangents)], axis=1)
    curvature = along.T @ -jax.hessian(lambda x: log_prob(unravel(x)))(origin) @ along
    proposal = multivariate_normal(
        along.T @ origin * (power > 0), (1 + power / 2) * np.linalg.inv(curvature)
    )
    places = proposal.rvs(20000, random_state=rng)
    draws = jax.vmap(unravel)(places @ along.T)
    jacobian = jax.jit(jax.vmap(lambda x: jnp.linalg.det(group.generators(x) @ basis)))
    ratio = np.exp(jax.vmap(log_prob)(draws) - proposal.logpdf(places))
    inside = group.inside(draws, center)
    assert 0.01 < inside.mean() < 0.99
    terms = ratio * np.abs(jacobian(draws)) * inside
    error = terms.std() / math.sqrt(len(terms)) / terms.mean()
    wanted = 0.5 * (num_factors + 1) * num_columns * math.log(2 * math.pi)
    wanted -= (0.5 * num_factors + power) * np.linalg.slogdet(precision)[1]
    wanted += power * num_factors * math.log(2)
    wanted += multigammaln(num_columns / 2 + power, num_factors)
    wanted -= multigammaln(num_columns / 2, num_factors)
    assert error < 0.03
    assert abs(math.log(terms.mean()) + group.log_size - wanted) < 5 * error


def images(known, params):
    """All of the parameters of a form under exchanges of its units, and signs of factors."""
    values = known.read(params)
    if "weights_2" in values:  # two layers of noisy-OR causes
        for low in map(list, itertools.permutations(range(len(values["leak_1"])))):
            for high in map(list, itertools.permutations(range(len(values["leak_2"])))):
                moved = {"weights_1": values["weights_1"][low], "leak_1": values["leak_1"][low]}
                moved["weights_2"] = values["weights_2"][high][:, low]
                yield known.write({**values, **moved, "leak_2": values["leak_2"][high]})
        return
    roles = [x for x in values if x not in ("noise", "bias") and np.ndim(values[x])]
    factors = "bias" in values
    for order in map(list, itertools.permutations(range(len(values[roles[0]])))):
        for signs in itertools.product((1, -1) if factors else (1,), repeat=len(order)):
            moved = {x: (values[x][order].T * signs).T for x in roles}
            yield known.write({**values, **moved})


def stacked(sets):
    sets = list(sets)
    return {x: np.stack([one[x] for one in sets]) for x in sets[0]}


@pytest.mark.parametrize(
    ("model", "sizes", "words", "size"),
    [
        (noisy_or_network, LAYERS,
         "3 causes of layer 1 may change places; 2 causes of layer 2 may change places", 12),
        (bernoulli_mixture, {"num_components": 4}, "4 components may change places", 24),
        (exam, {"traits": 3}, "3 factors may change places and signs", 48),
        (binary_sparse_coding, {"num_causes": 3}, "3 causes may change places", 6),
    ],
)  # fmt: skip
def test_one_image_of_each_draw_is_inside(model, sizes, words, size):
    """So the integral over the part inside, times the number of images, is that over all."""
    known = form_of(model, ((BITS,), sizes))
    rng = np.random.default_rng(2)
    sets = [{x: rng.uniform(0.1, 0.9, s) for x, s in known.shapes.items()} for _ in range(20)]
    group = group_of(known, lambda params: -sum(abs(x).sum() for x in params.values()), sets[0])
    if model is exam:  # where this density is that of a Laplace prior, not of a normal one
        assert group.generators(sets[0]).shape == (0, 20)
        sets = [{x: v - 0.5 for x, v in one.items()} for one in sets]
    assert group.words == f"{words} ({size} equal modes)"
    close(math.exp(group.log_size), size)
    for one in sets[1:]:
        inside = group.inside(stacked(images(known, one)), sets[0])
        assert len(inside) == size and inside.sum() == 1


def test_one_point_of_each_orbit_is_inside_the_slice():
    """Q W W0ᵀ is symmetric for 2ᴷ rotations Q: with U P = W W0ᵀ and P = V Λ Vᵀ for Q = V s Vᵀ Uᵀ,
    s any signs."""
    rng = np.random.default_rng(3)
    known = form_of(latent_trait, ((BITS,), {"num_factors": 3}))
    wanted, weights = rng.normal(size=(2, 3, 5))
    reference = {"weights": wanted, "bias": np.zeros(5)}
    group = group_of(known, lambda params: -(params["weights"] ** 2).sum(), reference)
    left, _, right = np.linalg.svd(weights @ wanted.T)
    signs = np.array(list(itertools.product((1, -1), repeat=3)))
    turns = np.stack([right.T * s @ left.T for s in signs])
    turned = turns @ weights
    products = turned @ wanted.T
    close(products, products.transpose(0, 2, 1))
    inside = group.inside({"weights": turned, "bias": np.zeros((8, 5))}, reference)
    np.testing.assert_array_equal(inside, (signs == 1).all(1))
    moved = {"weights": weights[None], "bias": np.zeros((1, 5))}
    aligned = align(moved, latent_trait, BITS, reference=reference, num_factors=3)
    close(aligned["weights"][0], turned[inside][0])


SCALES = np.array([1.0, 1.0, 2.0])
MEANS = np.array([0.5, 0.5, -1.0])


@pytest.mark.parametrize(
    ("penalty", "words", "log_size"),
    [
        (lambda w: (w**2).sum(), "3 factors may be rotated", math.log(16 * math.pi**2)),
        (lambda w: abs(w).sum(), "3 factors may change places and signs (48 equal modes)",
         math.log(48)),
        (lambda w: ((w - 0.5) ** 2).sum(), "3 factors may change places (6 equal modes)",
         math.log(6)),
        (lambda w: (abs(w.T) @ [1.0, 2.0, 3.0]).sum(),
         "the signs of 3 factors may change (8 equal modes)", math.log(8)),
        (lambda w: (w.T**2 @ SCALES).sum(),
         "2 of 3 factors may be rotated; the sign of 1 factor may change",
         math.log(4 * math.pi) + math.log(2)),
        (lambda w: ((w.T - MEANS) ** 2).sum(), "2 of 3 factors may change places (2 equal modes)",
         math.log(2)),
        (lambda w: (w[0] ** 2 + (w[1] - 1) ** 2 + abs(w[2] - 2)).sum(),
         "the sign of 1 factor may change (2 equal modes)", math.log(2)),
        (lambda w: -np.linalg.det(w[:, :3]) + (w**2).sum(),
         "3 factors may be rotated, not reflected", math.log(8 * math.pi**2)),
        (lambda w: ((w.T - [1.0, 2.0, 3.0]) ** 2).sum(), "no symmetry is known", 0.0),
    ],
)  # fmt: skip
def test_what_a_prior_breaks_is_found_broken(penalty, words, log_size):
    known = form_of(latent_trait, ((BITS,), {"num_factors": 3}))
    params = {"weights": np.ones((3, 5)), "bias": np.zeros(5)}  # where all factors are equal
    group = group_of(known, lambda x: -1e4 - penalty(np.asarray(x["weights"])), params)
    assert group.words == words
    close(group.log_size, log_size)


def test_a_prior_of_each_component_is_found_where_components_are_equal():
    """At a point at which an exchange changes nothing; with the likelihood of a mixture."""
    known = form_of(bernoulli_mixture, ((BITS,), {"num_components": 3}))
    params = {"probs": np.tile(np.linspace(0.2, 0.7, 5), (3, 1)), "mixing": np.full(3, 1 / 3)}

    def log_density(params, strength):
        probs, mixing = (np.asarray(params[x]) for x in ("probs", "mixing"))
        close(mixing.sum(), 1.0)
        assert probs.dtype == mixing.dtype == np.float64 and (probs > 0).all() and (probs < 1).all()
        total = (np.log(mixing) * (np.asarray(strength) - 1)).sum()
        for row in BITS:
            total += np.log((mixing * np.where(row > 0, probs, 1 - probs).prod(1)).sum())
        return total

    same = group_of(known, lambda x: log_density(x, [2.0, 2.0, 2.0]), params)
    assert same.words == "3 components may change places (6 equal modes)"
    broken = group_of(known, lambda x: log_density(x, [2.0, 3.0, 2.0]), params)
    assert broken.words == "2 of 3 components may change places (2 equal modes)"
    assert broken.blocks[0].members == (0, 2)
    assert group_of(None, abs, params).inside({"a": np.zeros((4, 2))}, {}).all()
    with pytest.raises(ValueError, match="log_density is nan near `params`"):
        group_of(known, lambda _: math.nan, params)
    few = form_of(latent_trait, ((BITS[:, :2],), {"num_factors": 3}))
    with pytest.raises(ProgramError, match="3 factors of 2 columns may be rotated"):
        group_of(few, lambda x: -(x["weights"] ** 2).sum(), {
            "weights": np.ones((3, 2)), "bias": np.zeros(2)})  # fmt: skip
