"""Ranks of the truth: uniform for an exact posterior, and only for that."""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from legible import assert_legible
from numpyro.infer import NUTS

import ppl_models
from inference.baselines.samplers import binary_gibbs_kernel
from inference.cli import main
from inference.comparison.calibration import calibrate as calibrate_module
from inference.comparison.calibration.calibrate import (
    METHODS,
    Bayesian,
    Calibration,
    Judged,
    ManyDraws,
    Ranked,
    Trials,
    chosen,
    describe,
    of_parameters,
    scalars,
    setting_of,
    shares,
    simulate,
)
from inference.comparison.calibration.telling import draw, lines, verdict
from inference.comparison.calibration.uniformity import (
    band,
    coverage,
    curve,
    held,
    p_value,
    power,
    ranks,
    shape,
    together,
)
from inference.evaluation.symmetry import Rotation, form_of, symmetries
from inference.files.cards import CARDS, example
from inference.reading.anatomy import inspect
from inference.reading.arguments import rows_of
from ppl_models import (
    bernoulli_mixture,
    bernoulli_product,
    binary_sparse_coding,
    combination_machine,
    latent_trait,
    noisy_or_network,
)

# A right posterior is called wrong once in a thousand keys.
PROBABILITY = 1e-3


# the test of uniformity


def test_p_values_are_those_of_all_possible_ranks():
    """Of 4 trials with 3 draws there are 256 outcomes, all equally likely."""
    p_values = np.array([p_value(np.array(x), 3) for x in itertools.product(range(4), repeat=4)])
    for p in np.unique(p_values):
        assert np.isclose((p_values <= p + 1e-9).mean(), p, atol=1e-9)


def test_the_band_and_the_p_value_say_the_same():
    limits = band(40, 19)
    rng = np.random.default_rng(0)
    for drawn in rng.integers(0, 20, (200, 40)) ** rng.choice([1, 1.05], (200, 1)):
        drawn = drawn.clip(0, 19).astype(int)
        points, share = curve(drawn, 19)
        inside = (share >= limits.lower - 1e-9) & (share <= limits.upper + 1e-9)
        np.testing.assert_allclose(points, limits.points)
        assert inside.all() == (p_value(drawn, 19) > 0.05)


def test_ranks_among_equals_are_drawn_by_lot():
    numbers = ranks(np.zeros(300), np.zeros((300, 3)))
    assert set(numbers) == {0, 1, 2, 3}
    assert p_value(numbers, 3) > PROBABILITY
    with pytest.raises(ValueError, match=r"found \(2,\) and \(3, 4\)"):
        ranks(np.zeros(2), np.zeros((3, 4)))


# intervals


def test_intervals_between_order_statistics_hold_the_truth_as_the_rank_says():
    draws = np.sort(np.random.default_rng(0).normal(size=79))
    truth = np.concatenate([[draws[0] - 1], (draws[1:] + draws[:-1]) / 2, [draws[-1] + 1]])
    inside, probability = held(np.arange(80), 79)
    for column, (tail, level) in enumerate([(20, 0.5), (8, 0.8), (2, 0.95)]):
        lower, upper = draws[tail - 1], draws[79 - tail]  # `tail` of 80 gaps lie on each side
        assert inside[:, column].tolist() == [lower < x < upper for x in truth]
        assert probability[column] == inside[:, column].mean() == level


def test_coverage_is_tested_by_all_counts_that_are_as_rare():
    rng = np.random.default_rng(1)
    ranked = np.r_[rng.integers(2, 78, 25), np.zeros(5, int)]  # of 30, five are too low for 95 %
    found = coverage(ranked, 79)["95 %"]
    chance = [math.comb(30, k) * 0.95**k * 0.05 ** (30 - k) for k in range(31)]
    as_rare = sum(x for x in chance if x <= chance[25] * (1 + 1e-9))
    assert np.isclose(found["p_value"], as_rare) and np.isclose(found["share"], 25 / 30)
    assert np.isclose(found["error"], np.sqrt(25 / 30 * 5 / 30 / 30))


@pytest.mark.parametrize("kind", ["shift", "narrow"])
def test_the_power_that_is_stated_is_that_of_the_test(kind):
    """Draws and truth of a normal posterior, 300 runs: 80 ± 2.3 %, the grid's step aside."""
    rng = np.random.default_rng(2)
    shift, narrow = power(50, 39, 5)
    shift, width = (shift, 1.0) if kind == "shift" else (0.0, 1.0 - narrow)
    shown = []
    for _ in range(300):
        draws = shift + width * rng.normal(size=(50, 39))
        shown.append(together([p_value(ranks(rng.normal(size=50), draws), 39), *[1.0] * 4]) < 0.05)
    assert 0.72 < np.mean(shown) < 0.9


# a posterior known by hand: bits with a flat prior


def product_posterior(trust):
    """Truth and Beta draws of the mean, the first and the log likelihood of three chances.

    `trust`: how often each datum is counted; 1 is right.
    """
    rng = np.random.default_rng(0)
    truth = rng.random((300, 3))
    ones = rng.binomial(20, truth)
    right = rng.beta(1 + trust * ones[:, None], 1 + trust * (20 - ones[:, None]), (300, 99, 3))

    def log_likelihood(probability):
        count = ones if probability.ndim == 2 else ones[:, None]
        return (count * np.log(probability) + (20 - count) * np.log1p(-probability)).sum(-1)

    looks = (lambda x: x.mean(-1), lambda x: x[..., 0], log_likelihood)
    return [(look(truth), look(right)) for look in looks]


def test_ranks_in_an_exact_posterior_are_uniform():
    p_values = [p_value(ranks(truth, draws), 99) for truth, draws in product_posterior(1)]
    assert together(p_values) > PROBABILITY


@pytest.mark.parametrize(("trust", "words"), [(3, "too narrow"), (1 / 3, "too wide")])
def test_a_posterior_of_the_wrong_width_is_flagged(trust, words):
    for truth, draws in product_posterior(trust)[:2]:
        numbers = ranks(truth, draws)
        assert p_value(numbers, 99) < PROBABILITY and shape(numbers, 99) == words


def test_a_posterior_that_lies_aside_is_flagged():
    truth, draws = product_posterior(1)[0]
    numbers = ranks(truth, draws + 0.1)
    assert p_value(numbers, 99) < PROBABILITY and shape(numbers, 99) == "too high"


# what is ranked


@pytest.mark.parametrize("name", sorted(CARDS))
def test_scalars_do_not_know_the_names_of_hidden_units(name):
    model = getattr(ppl_models, name)
    truth = {x: np.asarray(v) for x, v in CARDS[name].small().params.items()}
    moved = dict(truth)
    data_set = example(name, 13, which="small")  # as test_admits draws it
    form = form_of(model, ((data_set.values,), data_set.sizes))
    for symmetry in symmetries(form):
        if isinstance(symmetry, Rotation):
            shape = (len(moved["weights"]),) * 2
            turn = np.linalg.qr(np.random.default_rng(1).normal(size=shape))[0]
            moved["weights"] = turn @ moved["weights"]
        else:
            for site, axis in symmetry.sites:
                moved[site] = np.roll(moved[site], 1, axis)
    latents = bool(inspect(model, (data_set.values,), data_set.sizes).latents)
    if form is None and latents:
        moved = {x: np.roll(-v, 1) for x, v in truth.items() if v.ndim} | {
            x: v for x, v in truth.items() if not v.ndim
        }
    measured = jax.jit(lambda params: of_parameters(form, params, latents))
    before, after = measured(truth), measured(moved)
    assert len(before) >= 3
    for scalar, value in before.items():
        np.testing.assert_allclose(after[scalar], value, rtol=1e-4, err_msg=scalar)


def test_a_held_out_row_does_not_know_the_truth():
    """Two rows and a flat prior: the posterior is Beta(1 + ones, 3 − ones).

    A row that the truth has drawn is more probable under it than under other draws.
    """
    setting = setting_of("bernoulli_product", {})._replace(num_data=2, priors={})
    trials = simulate("bernoulli_product", setting, 800, random.key(3))
    ones = np.asarray(trials.data).sum(1)[:, None]
    draws = np.random.default_rng(0).beta(1 + ones, 3 - ones, (800, 19, 4))
    rows = np.asarray(trials.held_out)
    log_p = lambda p, row: np.log(np.where(row == 1, p, 1 - p)).sum(-1)  # noqa: E731
    truth = np.asarray(trials.truth["probs"])
    place = lambda row: ranks(log_p(truth, row), log_p(draws, row[:, None]))  # noqa: E731
    assert p_value(place(rows[:, 0]), 19) > PROBABILITY
    own = np.roll(rows[:, 0], -1, axis=0)
    assert p_value(place(own), 19) < PROBABILITY

    # What is ranked is the same number, of the last row alone.
    table = np.concatenate([trials.data[0], rows[0]])
    values = scalars(bernoulli_product, table)({"probs": draws[0]}, table)
    wanted = log_p(draws[0], rows[0])
    np.testing.assert_allclose(values["log p of a held-out row"], wanted, rtol=1e-5)
    wanted = sum(log_p(draws[0], row) for row in np.asarray(trials.data[0]))
    np.testing.assert_allclose(values["log likelihood"], wanted, rtol=1e-5)
    total = values["log likelihood"] + values["log prior"]
    np.testing.assert_allclose(values["log joint"], total, rtol=1e-5)


def usage(model, params, **sizes):
    arguments = (np.zeros((3, 4), np.float32),), sizes
    anatomy = inspect(model, *arguments)
    return shares(model, anatomy, params, rows_of(anatomy, *arguments))


def test_shares_of_units_are_sums_over_every_state():
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    odds, on = 0.0, np.zeros(3)
    for state in itertools.product((0, 1), repeat=3):
        weight = np.exp(np.dot(state, bias)) * np.prod(2 * np.cosh(state @ weights))
        odds, on = odds + weight, on + weight * np.array(state)
    found = usage(combination_machine, {"weights": weights, "bias": bias}, num_causes=3)
    assert np.isclose(found["causes, largest share"], max(on / odds), rtol=1e-5)
    assert np.isclose(found["causes, smallest share"], min(on / odds), rtol=1e-5)

    leak = {f"leak_{k}": rng.gamma(2, 0.3, n) for k, n in enumerate((4, 3, 2))}
    weights = {"weights_1": rng.gamma(2, 0.5, (3, 4)), "weights_2": rng.gamma(2, 0.5, (2, 3))}
    below = np.zeros(3)
    for top in itertools.product((0, 1), repeat=2):
        chance = np.prod(np.where(top, 1 - np.exp(-leak["leak_2"]), np.exp(-leak["leak_2"])))
        below += chance * (1 - np.exp(-leak["leak_1"] - top @ weights["weights_2"]))
    found = usage(noisy_or_network, {**leak, **weights}, layers=(3, 2))
    assert np.isclose(found["layer_1, largest share"], max(below), rtol=1e-5)
    assert np.isclose(found["layer_2, smallest share"], 1 - np.exp(-min(leak["leak_2"])), rtol=1e-5)
    assert not usage(latent_trait, {}, num_factors=1)


def two_steps(data):
    """A chain of two states that begins in either and stays or moves on."""
    each = dist.Beta(2.0, 2.0).expand((2,)).to_event(1)
    stay, show = numpyro.sample("stay", each), numpyro.sample("show", each)
    move = jnp.where(jnp.eye(2, dtype=bool), stay[:, None], 1 - stay[:, None])
    with numpyro.plate("data", len(data)):
        first = numpyro.sample("first", dist.Categorical(jnp.full(2, 0.5)))
        second = numpyro.sample("second", dist.Categorical(move[first]))
        numpyro.sample("seen", dist.Bernoulli(show[second]), obs=data[:, 0])


def test_shares_of_classes_do_not_know_their_labels():
    params = {"stay": jnp.array([0.9, 0.4]), "show": jnp.array([0.2, 0.7])}
    second = 0.5 * 0.9 + 0.5 * 0.6  # in the first state
    for labelled in (params, {x: v[::-1] for x, v in params.items()}):
        found = usage(two_steps, labelled)
        assert np.isclose(found["second, largest share"], second)
        assert np.isclose(found["second, smallest share"], 1 - second)
        assert np.isclose(found["first, largest share"], 0.5)


def test_factors_may_be_turned_in_a_known_and_in_an_unknown_form():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    weights, others = rng.normal(size=(2, 5)), {"bias": rng.normal(size=5), "guessing": np.ones(5)}
    guessing = form_of(latent_trait, ((np.eye(5),), {"num_factors": 2, "guessing": True}))
    for form in (guessing, None):
        before, after = (
            of_parameters(form, {"weights": x, **others}) for x in (weights, turn @ weights)
        )
        assert {x for x in before if x.startswith("weights")} >= {"weights size"}
        for scalar, value in before.items():
            np.testing.assert_allclose(after[scalar], value, rtol=1e-4, err_msg=scalar)


# where tables come from


def test_the_priors_of_sites_that_are_drawn_are_named():
    def named(name, *sites):
        setting, none = setting_of(name, {}), np.zeros(0)
        model = getattr(ppl_models, name)
        return describe(Trials(name, model, {}, dict.fromkeys(sites, none), none, none, setting))

    one = {"weights": "Normal(0, 1)", "bias": "Normal(0, 1)"}
    assert named("latent_trait", "weights", "bias") == one
    guessing = named("latent_trait", "weights", "bias", "guessing")
    assert guessing == {**one, "guessing": "Beta(5, 17)"}
    both = {"mixing": "uniform on the simplex", "probs": "Dirichlet(3)"}
    assert named("categorical_mixture", "mixing", "probs_2", "probs_3") == both
    assert named("noisy_or_network", "leak_0") == {"leak": "Gamma(8, 20)"}


# where a chain begins


def test_bits_begin_where_the_parameters_put_them():
    """From bits of the prior the parameters would be dragged off the place they were put at."""
    causes = random.bernoulli(random.key(0), 0.4, (40, 3)).astype(int)
    weights = jnp.array([[9.0, 8.0, 0.0], [0.0, 9.0, 8.0], [8.0, 0.0, 9.0]])
    data = causes @ weights + 0.1 * random.normal(random.key(1), (40, 3))
    kwargs = {"num_causes": 3}
    kernel = binary_gibbs_kernel(
        binary_sparse_coding, inspect(binary_sparse_coding, (data,), kwargs),
        NUTS(binary_sparse_coding, find_heuristic_step_size=False),
    )  # fmt: skip
    place = {"weights": weights, "noise": jnp.log(1.0), "sparsity": jnp.log(0.4 / 0.6)}
    begin = jax.jit(lambda key: kernel.init(key, 0, place, (data,), kwargs).z["causes"])
    np.testing.assert_array_equal(begin(random.key(2)), causes)


# the command


@pytest.mark.parametrize(
    ("model", "sizes", "left_out"),
    [
        (bernoulli_product, {}, {"LatentGibbs", "DiscreteGibbs"}),
        (bernoulli_mixture, {"num_components": 3}, {"LatentGibbs"}),
        (latent_trait, {"num_factors": 1}, {"LatentGibbs", "DiscreteGibbs", "SVI flow"}),
        (binary_sparse_coding, {"num_causes": 2}, {"DiscreteGibbs"}),
    ],
)
def test_every_bayesian_method_is_calibrated_where_it_applies(model, sizes, left_out):
    anatomy = inspect(model, (np.zeros((10, 4), np.float32),), sizes)
    names, refused = chosen(anatomy, None)
    assert set(refused) == left_out and set(names) == set(METHODS) - left_out


def test_calibrate_runs_ranks_and_draws(tmp_path, capsys):
    files = [str(tmp_path / x) for x in ("ranks.json", "ranks.png")]
    status = main(
        ["calibrate", "bernoulli_product", "--methods", "nuts", "--trials", "20",
         "--set", "num_data=15", "--json", files[0], "--figure", files[1]]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert status == 0 and "NUTS: nothing wrong" in printed and "Beta(5, 5)" in printed
    report = json.loads((tmp_path / "ranks.json").read_text())
    assert report["num_data"] == 15 and report["methods"]["NUTS"]["covers"]
    ranked = report["methods"]["NUTS"]["scalars"]
    densities = ["log joint", "log likelihood", "log p of a held-out row", "log prior"]
    assert list(ranked) == [*densities, "probs mean", "probs size", "probs, first"]
    assert len(ranked["probs mean"]["ranks"]) == 20
    assert 0 <= min(ranked["probs mean"]["ranks"]) <= max(ranked["probs mean"]["ranks"]) <= 79
    inside = [8 <= x <= 71 for x in ranked["log joint"]["ranks"]]
    assert np.isclose(ranked["log joint"]["coverage"]["80 %"]["share"], np.mean(inside))
    every = [8 <= x <= 71 for one in ranked.values() for x in one["ranks"]]
    assert f"80 % intervals that hold the truth, %   {100 * np.mean(every):.1f} ±" in printed
    assert "With probability 80 %, 20 tables show a shift of one scalar by" in printed
    assert (tmp_path / "ranks.png").read_bytes()[:4] == b"\x89PNG"


def judged(p_values, num_trials=40, **more):
    """A method's ranks and what they are worth, made up."""
    own_ranks = np.arange(num_trials) * 80 // num_trials
    covered = coverage(own_ranks, 79)
    each = {x: Ranked(own_ranks, p, "too narrow", 70.0, covered) for x, p in p_values.items()}
    numbers = {"seconds": 1.0, "diverging": 0.0, "stuck": 0, "lost": 0, **more}
    return Judged(each, together(list(p_values.values())), **numbers)


def test_rank_plots_can_be_read():
    one = judged({f"weights_{i}, largest axis": 0.5 for i in range(4)})
    setting = setting_of("bernoulli_product", {})
    trials = Trials("", bernoulli_product, {}, {}, np.zeros((40, 3, 2)), np.zeros(40), setting)
    figure = draw(Calibration(trials, dict.fromkeys(METHODS, one), {}, {}))
    assert_legible(figure)
    colours = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
    few = draw(Calibration(trials, {"SVI flow": one}, {}, {}))
    assert few.axes[0].lines[0].get_color() == colours["SVI flow"]  # whoever else takes part


def test_one_run_in_twenty_is_no_proof():
    assert "nothing wrong that 40 trials" in verdict("NUTS", judged({"a": 0.06}))
    assert "in doubt (p = 0.04)" in verdict("NUTS", judged({"a": 0.02, "b": 0.5}))
    assert "one run of 25" in verdict("NUTS", judged({"a": 0.02, "b": 0.5}))
    assert verdict("NUTS", judged({"a": 1e-13}, stuck=1)) == (
        "NUTS: not calibrated (p < 1e-09), coverage within sampling error, foremost a: its draws "
        "are too narrow; in 1 trial none of its draws came near the likelihood of the truth: it "
        "sticks where it should not be"
    )
    one = judged({"a": 0.5, "b": 0.5})
    wide = one.scalars["b"]._replace(coverage=coverage(np.full(40, 30), 79))  # all in the middle
    assert "coverage within sampling error" in verdict("NUTS", one)
    assert "coverage off" in verdict("NUTS", one._replace(scalars={**one.scalars, "b": wide}))


def test_a_method_that_fails_or_diverges_says_so_and_the_others_go_on(monkeypatch):
    rng = np.random.default_rng(0)
    truth = rng.random((40, 1))
    data = (rng.random((40, 30, 1)) < truth[:, None]).astype(float)

    def right(_, key, data, num_samples):
        del key
        assert data.shape == (40, 30, 1)  # the held-out row is not among them
        ones = data.sum(1)[:, None]
        draws = rng.beta(1 + ones, 31 - ones, (40, num_samples, 1))
        return ManyDraws({"probs": draws}, np.zeros(draws.shape[:2], bool))

    def diverging(*args, **kwargs):
        draws = right(*args, **kwargs)
        draws.params["probs"][3] = np.nan
        return draws

    def failing(*_, **__):
        raise FloatingPointError("the ELBO\nis not finite")

    runs = {"NUTS": right, "SVI flow": failing, "SVI low_rank": diverging}
    monkeypatch.setattr(
        calibrate_module, "METHODS", {x: Bayesian(f, 1, lambda _: None) for x, f in runs.items()}
    )
    monkeypatch.setattr(
        calibrate_module,
        "scalars",
        lambda *_: (
            lambda params, _: {
                "log likelihood": -params["probs"][:, 0],
                "probs mean": params["probs"].mean(-1),
            }
        ),
    )
    setting = setting_of("bernoulli_product", {})
    trials = Trials("", bernoulli_product, {}, {"probs": truth}, data, data[:, :1], setting)
    calibration = calibrate_module.calibrate(trials, random.key(1))
    assert list(calibration.methods) == ["NUTS", "SVI low_rank"]
    said = "\n".join(lines(calibration))
    assert "SVI flow: failed after 0 s: FloatingPointError: the ELBO is not finite" in said
    assert "NUTS: nothing wrong" in said and "in 1 trial its draws are no numbers" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trials", "3"], "at least 10"),
        (["--methods", "EM"], "choose from NUTS"),
        (["--methods", "LatentGibbs"], "it is run here on binary latents alone"),
        (["--set", "num_nothing=3"], "takes data"),
        (["--figure", "ranks.txt"], ".png or .svg"),
    ],
)
def test_what_is_wrong_is_said_before_the_work(arguments, words, capsys):
    assert main(["calibrate", "bernoulli_product", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_program_is_found_by_its_other_names(capsys):
    assert main(["calibrate", "LCA", "--set", "n_classes=2", "--methods", "no such"]) == 2
    assert "choose from NUTS" in capsys.readouterr().err
