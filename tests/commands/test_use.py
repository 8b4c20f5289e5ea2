"""Fit, then transform, complete and score: from a file to files, held to the mixture by hand."""

import contextlib
import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

import inference.commands.fit as fit_command
import inference.commands.fit_report as fit_report
import inference.evaluation.standard_errors as information
from inference import Algorithm, inspect, standard_errors
from inference.baselines import samplers, variational
from inference.baselines.samplers import Draws
from inference.cli import main
from inference.commands.options import Given
from inference.comparison.contenders import contenders
from inference.comparison.recommend import preferred, sparse
from inference.evaluation.diagnostics import diagnose, pareto_k
from inference.files.arviz import load
from inference.files.cards import example
from inference.running.contract import Stop
from ppl_models import bernoulli_mixture, latent_trait, noisy_or_network
from ppl_models.data import InputError, Table

MADE = example("bernoulli_mixture", 60, which="small")
NAMES = [f"q{i}" for i in range(12)]


def write(path, values, mask=None):
    """As surveys come: numbered rows, 1 for no, 2 for yes, -9 where no answer was given."""
    mask = np.ones(values.shape, bool) if mask is None else mask
    rows = [
        ",".join(
            [str(101 + i), *(str(int(x + 1)) if m else "-9" for x, m in zip(r, k, strict=True))]
        )
        for i, (r, k) in enumerate(zip(values, mask, strict=True))
    ]
    path.write_text("\n".join([",".join(["case", *NAMES]), *rows]) + "\n")
    return str(path)


def read(path):
    with path.open() as stream:
        rows = list(csv.reader(stream))
    return rows[0], np.array(rows[1:], float)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("use")
    data = write(folder / "old.csv", MADE.values[:40])
    fit = folder / "fit.nc"
    arguments = ["--set", "num_components=3", "--steps", "30", "--out", str(fit)]
    arguments += ["--missing", "-9"]
    arguments += ["--starts", "2"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["fit", "bernoulli_mixture", "--data", data, *arguments]) == 0
    (folder / "printed").write_text(printed.getvalue())
    groups, attrs = load(fit)
    params = {x: v.values for x, v in groups["point_estimate"].items()}
    assert attrs["method"] == "EM" and list(groups["point_estimate"]["column"].values) == NAMES
    mask = np.random.default_rng(1).random((20, 12)) < 0.8
    new = write(folder / "new.csv", MADE.values[40:], mask)
    return folder, fit, new, params, mask


def joint(params, values, mask):
    """p(component, what was seen), (rows, components), in loops."""
    out = np.zeros((len(values), 3))
    for n in range(len(values)):
        for k in range(3):
            out[n, k] = params["mixing"][k]
            for d in np.flatnonzero(mask[n]):
                p = params["probs"][k, d]
                out[n, k] *= p if values[n, d] else 1 - p
    return out


def use(verb, fitted, *more):
    folder, fit, new, _, _ = fitted
    out = folder / f"{verb}.csv"
    assert main([verb, str(fit), "--data", new, "--out", str(out), *more]) == 0
    return read(out)


def test_fit_prints_what_it_estimated(fitted):
    folder, _, _, params, _ = fitted
    lines = (folder / "printed").read_text().splitlines()
    said = {line.split()[0]: line.split()[1:] for line in lines if line}
    full = np.ones((40, 12), bool)
    wanted = np.log(joint(params, MADE.values[:40], full).sum(1)).sum()
    printed = {name: float(said[name][k]) for name, k in (("log", 1), ("AIC", 0), ("BIC", 0))}
    free = 2 + 3 * 12  # a simplex of three has two
    np.testing.assert_allclose(printed["log"], wanted, atol=0.01)
    np.testing.assert_allclose(printed["AIC"], 2 * free - 2 * wanted, atol=0.02)
    np.testing.assert_allclose(printed["BIC"], free * np.log(40) - 2 * wanted, atol=0.02)
    assert "columns (12 1/2)" in "\n".join(lines)
    kept = json.loads(load(fitted[1])[1]["optima"])
    assert kept["starts"] == len(kept["losses"]) == 2
    warned = [line for line in lines if line.startswith("warning   ") and "starts agree" in line]
    assert bool(warned) == (kept["agree"] < 2)
    ended = " ".join(said["stopped"]).startswith("left to gain by estimate")
    assert said["converged"][0] == ("yes" if ended else "no:")
    assert said["fit"] == [str(fitted[1])]
    top = next(i for i, line in enumerate(lines) if line.startswith("q3 ")) + 1
    numbers = np.array([float("nan" if x == "—" else x) for x in lines[top].split()[1:]])
    np.testing.assert_allclose(numbers[::2], params["probs"][:, 3], atol=1e-4)
    with pytest.warns(information.BoundWarning) as heard:
        wanted = standard_errors(bernoulli_mixture, params, MADE.values[:40], num_components=3)
    np.testing.assert_allclose(numbers[1::2], wanted["probs"][:, 3], atol=2e-4)
    (line,) = (x for x in lines if x.startswith("At a bound"))
    for bound in heard[0].message.bounds[:12]:
        k, column = bound.place
        assert f"q{column} = 2 in class {k + 1} = {bound.value:.0f} (" in line
    assert (np.diff(params["mixing"]) <= 0).all()  # the largest class first
    shares = lines[next(i for i, line in enumerate(lines) if line.startswith("class  ")) :]
    assert [line.split()[1] for line in shares[1:4]] == [f"{x:.4f}" for x in params["mixing"]]


def test_errors_are_printed_beside_converged_maxima_of_the_likelihood(monkeypatch):
    values = np.asarray(MADE.values[:20, :3], np.float32)
    table = Table(values, values > -1, ("a", "b", "c"), ("0/1",) * 3, "x.csv")
    given = Given("latent_trait", latent_trait, table, {"num_factors": 1})
    params = {"weights": np.array([[[[1.0, 2.0, 3.0]]]]), "bias": np.array([[[4.0, 5.0, 6.0]]])}
    errors = {"weights": np.array([[0.1, 0.2, np.nan]]), "bias": np.array([0.4, 0.5, 0.6])}
    monkeypatch.setattr(information, "standard_errors", lambda *_, **__: errors)
    facts = {"reason": "done", "losses": np.zeros(9), "stop": Stop.TOLERANCE}

    def report(settings=(), **more):
        contender = SimpleNamespace(kind="point")
        asked = SimpleNamespace(rotation="none", group=None, id=None, posterior=False, outcomes=())
        return fit_report.report(
            given, "QuadratureEM", contender, params, {**facts, **more}, dict(settings), asked
        )[0]

    lines = report()
    assert "converged yes" in lines and "errors    from the observed information" in lines
    (likely,) = (line for line in lines if line.startswith("log likelihood"))
    assert "quadrature, nodes that all rows share" in likely  # what was computed
    items = [line.split() for line in lines[lines.index("") :]]
    assert items[1][:1] == ["Items:"] and sum(line[:1] == ["a"] for line in items) == 1
    head = "item discrimination se difficulty se intercept se loading communality"
    assert items[2] == head.split()
    assert items[3][:4] == ["a", "1.0000", "0.1000", "-4.0000"] and items[3][5] == "4.0000"
    assert items[5][:4] == ["c", "3.0000", "—", "-2.0000"]
    assert any(line.startswith("AIC") and "(6 free parameters)" in line for line in lines)
    of_mode = [x for x in report({"prior": True}) if x[:3] in ("AIC", "BIC")]
    assert all("at the mode of the posterior)" in line for line in of_mode) and len(of_mode) == 2
    (early,) = (line.split() for line in report(stop=Stop.STEPS) if line.startswith("a "))
    assert early[:4] == ["a", "1.0000", "-4.0000", "4.0000"]
    # All steps were done, and for the last of them the likelihood has not risen.
    still = report(stop=Stop.STEPS, losses=np.append(np.linspace(9.0, 8.0, 30), np.full(30, 8.0)))
    assert any(line.startswith("converged yes") for line in still)
    assert "errors    from the observed information" in still


def said_of_draws(monkeypatch, capsys, folder, method, draws, model, size):
    """What `fit` prints of draws that a generic method is made to return, and what it keeps."""
    module, name = (samplers, "nuts") if method == "NUTS" else (variational, "svi")
    monkeypatch.setattr(module, name, lambda *_, **__: draws)
    data, out = write(folder / "rows.csv", MADE.values[:40]), folder / "fit.nc"
    asked = ["--data", data, "--set", size, "--missing", "-9", "--method", method]
    assert main(["fit", model, *asked, "--out", str(out)]) == 0
    return capsys.readouterr().out.splitlines(), load(out)[0]


def drawn(params, **stats):
    rows = next(iter(params.values())).shape[:2]
    return Draws(params, stats, np.zeros(0), {}, np.arange(rows[1]), 1.0, 1.0, "all draws made")


def cells(lines, first):
    """Numbers of the line that begins so."""
    (line,) = (x for x in lines if x.split() and x.split()[0] == first)
    return np.array(line.split()[1:], float)


def test_fit_prints_draws_brought_together_with_their_checks(tmp_path, monkeypatch, capsys):
    """Chains at both mirror images of a factor, and at both orders of two classes."""
    rng = np.random.default_rng(0)
    sign = np.array([1.0, -1.0, -1.0, 1.0])[:, None, None, None]
    slopes = 2.2 + 0.1 * rng.normal(size=(4, 300, 1, 12))
    params = {"weights": sign * slopes, "bias": 0.1 * rng.normal(size=(4, 300, 12))}
    stats = {"lp": rng.normal(size=(4, 300)), "diverging": np.zeros((4, 300), bool)}
    lines, groups = said_of_draws(
        monkeypatch, capsys, tmp_path, "NUTS", drawn(params, **stats), "latent_trait",
        "num_factors=1",
    )  # fmt: skip
    kept = groups["posterior"]["weights"].values
    heads = next(x.split() for x in lines if "weights" in x.split())
    mean, deviation = cells(lines, "q3")[[heads.index("weights"), heads.index("weights") + 1]]
    assert abs(mean) == pytest.approx(slopes[..., 0, 3].mean(), rel=5e-3)
    assert deviation == pytest.approx(slopes[..., 0, 3].std(), rel=0.1)  # two digits are printed
    assert mean == pytest.approx(kept[..., 0, 3].mean(), rel=5e-3)
    assert "sd" in heads and "se" not in heads
    assert "checks    its checks pass" in lines
    rhat, effective = (next(x for x in lines if x.startswith(y)) for y in ("R̂", "effective"))
    wanted = diagnose({"lp": stats["lp"]})["lp"]
    assert f" {wanted['rhat']:.3f} of the log joint" in rhat
    assert f" {wanted['ess_bulk']:.0f} draws of the log joint" in effective

    probs = np.clip(np.array([[0.2], [0.8]]) + 0.01 * rng.normal(size=(4, 300, 2, 12)), 0, 1)
    probs[2] = probs[2, :, ::-1]
    params = {"mixing": np.full((4, 300, 2), 0.5), "probs": probs}
    stats = {"lp": rng.normal(size=(4, 300)) + 9.0 * (sign[..., 0, 0] > 0)}
    stats["diverging"] = np.arange(1200).reshape(4, 300) < 3
    lines, _ = said_of_draws(
        monkeypatch, capsys, tmp_path, "NUTS", drawn(params, **stats), "bernoulli_mixture",
        "num_components=2",
    )  # fmt: skip
    assert sorted(cells(lines, "q3")[::2]) == pytest.approx([0.2, 0.8], abs=5e-3)
    (words,) = (x for x in lines if x.startswith("checks"))
    assert words.startswith("checks    fails its checks (R̂ of the log joint ")
    assert "3 divergences" in words and "effective draws" in words


@pytest.mark.parametrize(("tail", "passes"), [(4.0, True), (0.8, False)])
def test_fit_says_what_the_deviation_of_a_guide_is(tmp_path, monkeypatch, capsys, tail, passes):
    rng = np.random.default_rng(1)
    params = {"weights": rng.normal(size=(1, 500, 1, 12)), "bias": rng.normal(size=(1, 500, 12))}
    ratios = np.log1p(rng.pareto(tail, (1, 500)))
    draws = drawn(params, log_p=ratios, log_q=np.zeros((1, 500)))._replace(
        starts=np.array([100.0, 100.1])
    )
    lines, _ = said_of_draws(
        monkeypatch, capsys, tmp_path, "SVI mean_field", draws, "latent_trait", "num_factors=1"
    )
    assert not any("se" in x.split() for x in lines) and any("sd" in x.split() for x in lines)
    assert any(x.startswith("mean of the guide") and "no standard error" in x for x in lines)
    assert any("smaller than that of the posterior" in x for x in lines)
    found = pareto_k(ratios)
    (shown,) = (x for x in lines if x.startswith("k̂"))
    assert f" {found:.2f} of the guide's draws" in shown
    words = "its checks pass" if passes else f"fails its checks (Pareto k̂ {found:.2f})"
    assert f"checks    {words}" in lines


def test_fit_tells_where_the_starts_of_a_generic_mode_ended(tmp_path, monkeypatch, capsys):
    params = {"weights": np.ones((1, 1, 1, 12)), "bias": np.zeros((1, 1, 12))}
    draws = drawn(params)._replace(starts=np.array([100.0, 100.0, 130.0]), losses=np.ones(3))
    lines, _ = said_of_draws(
        monkeypatch, capsys, tmp_path, "MAP", draws, "latent_trait", "num_factors=1"
    )
    words = "2 of 3 starts agree on the best optimum (losses 100, 100, 130)"
    assert f"warning   {words}: --starts 20 tries more" in lines


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["bernoulli_mixture", "--set", "num_components=3"], "has no loadings of bits or levels"),
        (["bernoulli_product"], "has no loadings of bits or levels"),
        (["clipped_gaussian", "--set", "num_factors=2"], "has no loadings of bits or levels"),
        (["latent_trait", "--set", "num_factors=2", "--method", "NUTS"], "NUTS draws, and a point"),
    ],
)
def test_a_rotation_that_would_turn_nothing_is_refused(fitted, capsys, asked, why):
    data, out = str(fitted[0] / "old.csv"), fitted[0] / "turned.nc"
    said = ["--data", data, "--rotation", "varimax", "--out", str(out)]
    assert main(["fit", *asked, *said]) == 2
    assert why in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("model", "rotation", "method"),
    [
        ("latent_trait", "none", "QuadratureEM"), ("graded_trait", "none", "BoundEM"),
        ("latent_trait", "varimax", "BoundEM"), ("graded_trait", "varimax", "QuadratureEM"),
        ("latent_trait", "oblimin", "BoundEM"), ("graded_trait", "oblimin", "QuadratureEM"),
    ],
)  # fmt: skip
def test_transform_of_the_rows_fitted_gives_the_scores_of_the_fit(
    tmp_path, model, rotation, method
):
    rng = np.random.default_rng(3)
    factors = rng.normal(size=(80, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])
    slopes = np.array([[1.5, 2.0, 1.0, 0.0, 0.2, 0.0], [0.0, 0.3, 0.0, 1.2, 2.0, 1.0]])
    levels = sum(factors @ slopes + rng.logistic(size=(80, 6)) > cut for cut in (-0.8, 0.8))
    values = (levels > 0) + 0 if model == "latent_trait" else levels
    cells = np.where(rng.random(values.shape) < 0.95, values, "")
    rows = [",".join("abcdef"), *(",".join(row) for row in cells)]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    data, fit = ["--data", str(tmp_path / "rows.csv")], str(tmp_path / "fit.nc")
    asked = ["--set", "num_factors=2", "--rotation", rotation, "--method", method]
    assert main(["fit", model, *data, *asked, "--steps", "30", "--out", fit]) == 0
    assert main(["transform", fit, *data, "--out", str(tmp_path / "new.csv")]) == 0
    _, scores = read(tmp_path / "fit_scores.csv")
    _, placed = read(tmp_path / "new.csv")
    # row, then (mean, se) by factor; row, then all means, then all deviations
    np.testing.assert_allclose(placed[:, [0, 1, 3, 2, 4]], scores, rtol=2e-5, atol=2e-5)


def test_a_fit_takes_a_method_that_can_and_what_the_paper_maximises(fitted, capsys, monkeypatch):
    asked = {}

    def stop(_, contender, __, settings, *___):
        asked.update(method=contender.name, **settings)
        raise InputError("far enough")

    monkeypatch.setattr(fit_command, "_fit", stop)
    data, out = str(fitted[0] / "old.csv"), str(fitted[0] / "five.nc")
    assert (
        main(["fit", "latent_trait", "--set", "num_factors=5", "--data", data, "--out", out]) == 2
    )
    assert asked == {"method": "MonteCarloEM"}
    assert "MonteCarloEM is used, since QuadratureEM does not apply: 5" in capsys.readouterr().err
    # The paper of noisy-OR networks maximises the posterior, and so does a fit by default.
    network = ["fit", "noisy_or_network", "--set", "layers=(2,)", "--data", data, "--out", out]
    for more, prior in (([], True), (["--option", "prior=False"], False)):
        assert main([*network, *more, "--missing", "-9"]) == 2
        assert asked == {"method": "EM", "prior": prior}


@pytest.mark.parametrize(("units", "rows", "name"), [(10, 1000, "EM"), (24, 1000, "GibbsSearch"),
                                                     (10, 100_000, "GibbsSearch")])  # fmt: skip
def test_states_are_summed_where_that_is_cheap(units, rows, name):
    """EM ends at the optimum of ten lines from every key, the search 0.1 nats per row behind it."""
    values = np.broadcast_to(np.float32(0), (rows, 25))  # only its shape counts
    sizes = {"layers": (units,)}
    anatomy = inspect(noisy_or_network, (values,), sizes)
    assert preferred(noisy_or_network, values, anatomy, sizes, contenders(anatomy)[0]) == name


def test_an_interrupted_fit_keeps_what_there_is_and_says_so(fitted, capsys, monkeypatch):
    run = Algorithm.run

    def interrupted(self, key, num_steps, *args, **kwargs):
        result = run(self, key, 3, *args, **kwargs)
        return result._replace(stop=Stop.INTERRUPTED, reason=f"interrupted after 3 of {num_steps}")

    monkeypatch.setattr(Algorithm, "run", interrupted)
    out = fitted[0] / "part.nc"
    command = ["fit", "bernoulli_mixture", "--data", str(fitted[0] / "old.csv"), "--out", str(out)]
    assert main([*command, "--set", "num_components=3", "--missing", "-9"]) == 130
    said = capsys.readouterr().out
    assert "interrupted after 3 of 500" in said and "the parameters of the last step" in said
    assert load(out)[0]["point_estimate"]["probs"].shape == (3, 12)


def test_score_is_the_log_likelihood_of_what_was_seen(fitted):
    names, values = use("score", fitted, "--id", "case")
    wanted = np.log(joint(fitted[3], MADE.values[40:], fitted[4]).sum(1))
    assert names == ["case", "log_likelihood", "error"]
    np.testing.assert_array_equal(values[:, 0], np.arange(101, 121))
    np.testing.assert_allclose(values[:, 1], wanted, rtol=1e-4)


def test_certificates_beside_scores_and_fits(fitted, capsys):
    """A mixture has few states: all of them are listed, and the brackets have no width."""
    names, values = use("score", fitted, "--certify")
    assert names == ["row", "log_likelihood", "error", "lower", "upper", "width"]
    np.testing.assert_allclose(values[:, 3], values[:, 1], rtol=1e-4)
    assert (values[:, 3] <= values[:, 4]).all() and (values[:, 5] < 1e-6).all()
    out = fitted[0] / "proved.nc"
    command = ["fit", "bernoulli_mixture", "--data", str(fitted[0] / "old.csv"), "--out", str(out)]
    options = ["--set", "num_components=3", "--missing", "-9", "--steps", "3", "--certify"]
    assert main([*command, *options]) == 0
    assert "certified log likelihood in [-" in capsys.readouterr().out
    widths = load(out)[0]["certificates"]["width"].values
    assert widths.shape == (40,) and (widths < 1e-6).all()


def test_transform_gives_the_chance_of_each_component(fitted):
    names, values = use("transform", fitted)
    both = joint(fitted[3], MADE.values[40:], fitted[4])
    assert names == ["row", "class_1", "class_2", "class_3", "class", "probability"]
    chances = both / both.sum(1, keepdims=True)
    np.testing.assert_allclose(values[:, 1:4], chances, atol=1e-4)
    np.testing.assert_array_equal(values[:, 4], chances.argmax(1) + 1)
    np.testing.assert_allclose(values[:, 5], chances.max(1), atol=1e-4)


def test_complete_keeps_what_was_seen_and_fills_in_the_rest(fitted):
    names, values = use("complete", fitted)
    mask, params = fitted[4], fitted[3]
    assert names == ["row", *NAMES]
    np.testing.assert_array_equal(values[:, 1:][mask], MADE.values[40:][mask] + 1)  # as written
    np.testing.assert_array_equal(values[:, 0], 101 + np.arange(20))
    both = joint(params, MADE.values[40:], mask)
    probability = both / both.sum(1, keepdims=True) @ params["probs"]
    np.testing.assert_allclose(values[:, 1:][~mask], probability[~mask], atol=1e-4)


def test_validation_keeps_the_step_that_explains_new_rows_best(fitted, capsys):
    folder = fitted[0]
    valid = write(folder / "valid.csv", MADE.values[40:])
    out = folder / "valid.nc"
    assert main([
        "fit", "bernoulli_mixture", "--data", str(folder / "old.csv"), "--valid", valid,
        "--set", "num_components=3", "--steps", "20", "--out", str(out),
    ]) == 0  # fmt: skip
    said, notes = capsys.readouterr()
    assert notes.splitlines()[0].startswith("note      column 'case' is left out: its cells ")
    assert "q10', 'q11'" not in notes and "...: '1' is read as 0, '2' as 1" in notes
    said = next(x for x in said.splitlines() if x.startswith("valid"))
    params = {x: v.values for x, v in load(out)[0]["point_estimate"].items()}
    full = np.ones((20, 12), bool)
    wanted = np.log(joint(params, MADE.values[40:], full).sum(1)).mean()
    assert abs(float(said.split()[1]) - wanted) < 1e-3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["score", "FIT", "--data", "NARROW", "--out", "x.csv"], "has no column 'q0': it has a, b"),
        (["score", "NARROW", "--data", "NEW", "--out", "x.csv"], "is no netCDF file"),
        (["score", "missing.nc", "--data", "NEW", "--out", "x.csv"], "there is no such file"),
        (["score", "FIT", "--data", "NEW", "--out", "x.txt"], "must end in .csv"),
        (["fit", "bernoulli_mixture", "--data", "NEW", "--out", "x.nc"], "needs num_components"),
        (
            ["fit", "bernoulli_mixture", "--data", "OLD", "--set", "num_components=2", "--method",
             "BoundEM", "--out", "x.nc"],
            "does not apply",
        ),
        *(
            (["fit", "latent_trait", "--data", "OLD", "--out", "x.nc", *more], words)
            for more, words in [
                (["--steps", "99999999999999"], "--steps 99999999999999: must be from 1 to"),
                (["--steps", "0"], "--steps 0: must be"),
                (["--budget", "nan"], "--budget nan: must be from 0 to"),
                (["--budget", "-1"], "--budget -1.0: must be from 0"),
                (["--seed", "-1"], "--seed -1: must be from 0"),
                (["--starts", "0"], "--starts 0: must be from 1"),
                (["--option", "num_nodes=100000"], "takes 298 GiB for the nodes alone"),
                (["--option", "num_nodes=2.5"], "num_nodes must be a whole number of at least 1"),
                (["--option", "num_nodes=-3"], "num_nodes must be a whole number of at least 1"),
                (["--option", "chunk_size=1.5"], "chunk_size must be a whole number of at least 1"),
                (["--option", "prior='x'"], "prior must be True or False, found 'x'"),
                (["--option", "remember='x'"], "remember must be True or False or None, found 'x'"),
                (["--option", "start=3"], "start must be a function or None, found 3"),
                (["--set", "num_factors=2.5"], "--set num_factors must be a whole number"),
                (["--set", "num_factors=100000000000"], "--set num_factors must be a whole number"),
                (["--set", "num_factors=1000000000"], "GiB for its sites alone"),
                (["--set", "prior_weights=3"], "--set prior_weights must be a distribution"),
            ]
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(fitted, arguments, words, capsys, monkeypatch):
    folder, fit, new, _, _ = fitted
    narrow = folder / "narrow.csv"
    narrow.write_text("a,b\n1,0\n0,1\n")
    monkeypatch.chdir(folder)
    names = {"FIT": str(fit), "NEW": new, "NARROW": str(narrow), "OLD": str(folder / "old.csv")}
    before = sorted(folder.iterdir())
    assert main([names.get(x, x) for x in arguments]) == 2
    error = capsys.readouterr().err
    (line,) = [x for x in error.splitlines() if not x.startswith("note ")]
    assert words in line
    assert sorted(folder.iterdir()) == before


def test_few_rows_of_very_many_columns_are_fitted_scored_and_held_out(tmp_path, capsys):
    """The shape of tables that evaluate language models: 12 × 41 871 takes 26 CPU-seconds."""
    rng = np.random.default_rng(0)
    ability, easy = np.linspace(-1.5, 1.5, 6)[:, None], rng.normal(size=1200)
    answers = rng.random((6, 1200)) < 1.0 / (1.0 + np.exp(-ability - easy))
    file, fit = tmp_path / "models.npy", tmp_path / "fit.nc"
    np.save(file, answers.astype(np.int8))
    arguments = ["fit", "latent_trait", "--data", str(file), "--set", "num_factors=1"]
    arguments += ["--constant", "--hold-out", "0.2", "--out", str(fit)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "of discriminations Normal(1, 0.5)" in printed.err
    (line,) = [x for x in printed.out.splitlines() if x.startswith("held out")]
    nats, base = float(line.split()[4]), float(line.split()[-1].rstrip(")"))
    assert base + 0.03 < nats < 0.0
    order = np.argsort(read(tmp_path / "fit_scores.csv")[1][:, 1])
    assert list(order) == list(range(6))
    seen = np.zeros((50, 3), bool)
    seen[:6] = True  # six answers a column: priors as well
    some = Table(seen + 0.0, seen, ("a", "b", "c"), ("0/1",) * 3, "")
    assert sparse(some) and not sparse(some._replace(mask=seen | True))
    more = [x.replace("num_factors=1", "num_factors=2") for x in arguments]
    assert main(more) == 2
    assert "6 rows do not determine the scale of a second factor" in capsys.readouterr().err
    arguments[arguments.index("0.2")] = "1.5"
    assert main(arguments) == 2
    assert "a share between 0 and 1" in capsys.readouterr().err
