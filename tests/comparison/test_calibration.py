"""Ranks of the truth: uniform for an exact posterior, and only for that."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from legible import assert_legible
from numpyro.infer import NUTS
from tools import fast_jit

import ppl_models
from inference.baselines.samplers import binary_gibbs_kernel
from inference.cli import main
from inference.comparison.calibration import calibrate as calibrate_module
from inference.comparison.calibration.calibrate import (
    METHODS,
    NUM_NODES,
    Bayesian,
    Calibration,
    Judged,
    ManyDraws,
    Ranked,
    Trials,
    chosen,
    fit_many,
    of_parameters,
    setting_of,
    shares,
)
from inference.comparison.calibration.telling import draw, lines, verdict
from inference.comparison.calibration.uniformity import band, curve, p_value, ranks, shape, together
from inference.evaluation.standard_errors import many_standard_errors, standard_errors
from inference.evaluation.symmetry import Rotation, form_of, symmetries
from inference.files.cards import CARDS, example
from inference.reading.anatomy import inspect
from ppl_models import bernoulli_mixture, bernoulli_product, binary_sparse_coding, latent_trait

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
    scalars = fast_jit(lambda params: of_parameters(form, params))
    before, after = scalars(truth), scalars(moved)
    assert len(before) >= 3
    for scalar, value in before.items():
        np.testing.assert_allclose(after[scalar], value, rtol=1e-4, err_msg=scalar)


# intervals


def test_errors_of_many_fits_are_those_of_each_and_intervals_are_counted():
    rng = np.random.default_rng(0)
    truth = {"weights": rng.normal(0, 1, (3, 1, 4)) + 1.5, "bias": rng.normal(0, 0.5, (3, 4))}
    factors = rng.normal(size=(3, 400, 1))  # with 80 rows a weight may grow without end
    probability = 1 / (1 + np.exp(-(factors @ truth["weights"] + truth["bias"][:, None])))
    data = (rng.random(probability.shape) < probability).astype(np.float32)
    truth = {x: v.astype(np.float32) for x, v in truth.items()}
    fitted = jax.device_get(fit_many(latent_trait, random.key(1), data, num_factors=1))
    errors = jax.device_get(
        many_standard_errors(latent_trait, fitted, data, num_nodes=NUM_NODES, num_factors=1)
    )
    first = {x: v[1] for x, v in fitted.items()}
    wanted = standard_errors(latent_trait, first, data[1], num_nodes=NUM_NODES, num_factors=1)
    for site, value in wanted.items():
        np.testing.assert_allclose(errors[site][1], value, rtol=1e-3)

    # Draws about the truth hold it; draws beside it do not.
    spread = np.linspace(-1, 1, 21, dtype=np.float32)
    draws = {
        "bias": truth["bias"][:, None] + spread[:, None],
        "weights": truth["weights"][:, None] + 0.01 + 0.001 * spread[:, None, None],
    }
    form = form_of(latent_trait, ((data[0],), {"num_factors": 1}))
    table = shares(form, truth, fitted, errors, draws)
    assert table["NUTS quantiles"]["bias"]["95 %"]["share"] == 1.0
    assert table["NUTS quantiles"]["weights"]["95 %"]["share"] == 0.0
    np.testing.assert_allclose(table["NUTS quantiles"]["bias"]["90 %"]["median_width"], 1.8, 1e-5)
    by_error = table["EM ± standard errors"]["bias"]
    assert by_error["95 %"]["share"] > 0.5 and by_error["50 %"]["share"] < 1.0
    assert by_error["95 %"]["trials"] == 3 and by_error["95 %"]["without"] == 0

    # A table without an interval counts, as one that does not hold the truth.
    lost = {x: np.concatenate([np.full_like(v[:1], np.nan), v[1:]]) for x, v in errors.items()}
    without = shares(form, truth, fitted, lost, draws)["EM ± standard errors"]["bias"]["95 %"]
    assert without["without"] == 1 and without["share"] <= 2 / 3


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
    begin = fast_jit(lambda key: kernel.init(key, 0, place, (data,), kwargs).z["causes"])
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
    assert status == 0 and "NUTS: nothing wrong" in printed and "Uniform(0, 1)" in printed
    report = json.loads((tmp_path / "ranks.json").read_text())
    assert report["num_data"] == 15 and report["coverage"] is None
    scalars = report["methods"]["NUTS"]["scalars"]
    assert list(scalars) == ["log likelihood", "probs mean", "probs size", "probs, first"]
    assert len(scalars["probs mean"]["ranks"]) == 20
    assert 0 <= min(scalars["probs mean"]["ranks"]) <= max(scalars["probs mean"]["ranks"]) <= 99
    assert (tmp_path / "ranks.png").read_bytes()[:4] == b"\x89PNG"


def judged(p_values, num_trials=40, **more):
    """A method's ranks and what they are worth, made up."""
    own_ranks = np.arange(num_trials) * 100 // num_trials
    each = {x: Ranked(own_ranks, p, "too narrow", 90.0) for x, p in p_values.items()}
    numbers = {"seconds": 1.0, "diverging": 0.0, "stuck": 0, "lost": 0, "draws": {}, **more}
    return Judged(each, together(list(p_values.values())), **numbers)


def test_rank_plots_can_be_read():
    one = judged({f"weights_{i}, largest axis": 0.5 for i in range(4)})
    setting = setting_of("bernoulli_product", {})
    trials = Trials("", bernoulli_product, {}, {}, np.zeros((40, 3, 2)), setting)
    figure = draw(Calibration(trials, dict.fromkeys(METHODS, one), {}, {}, None))
    assert_legible(figure)
    colours = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
    few = draw(Calibration(trials, {"SVI flow": one}, {}, {}, None))
    assert few.axes[0].lines[0].get_color() == colours["SVI flow"]  # whoever else takes part


def test_one_run_in_twenty_is_no_proof():
    assert "nothing wrong that 40 trials" in verdict("NUTS", judged({"a": 0.06}))
    assert "in doubt (p = 0.04)" in verdict("NUTS", judged({"a": 0.02, "b": 0.5}))
    assert "one run of 25" in verdict("NUTS", judged({"a": 0.02, "b": 0.5}))
    assert verdict("NUTS", judged({"a": 1e-13}, stuck=1)) == (
        "NUTS: not calibrated (p < 1e-09), foremost a: its draws are too narrow; in 1 trial none "
        "of its draws came near the likelihood of the truth: it sticks where it should not be"
    )


def test_a_method_that_fails_or_diverges_says_so_and_the_others_go_on(monkeypatch):
    rng = np.random.default_rng(0)
    truth = rng.random((40, 1))
    data = (rng.random((40, 30, 1)) < truth[:, None]).astype(float)

    def right(_, key, data, num_samples):
        del key
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
    trials = Trials("", bernoulli_product, {}, {"probs": truth}, data, setting)
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
