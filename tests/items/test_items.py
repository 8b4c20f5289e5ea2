"""Item and model fit against NumPy loops over all rows that there can be."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.stats
from tools import quick_run

from inference import EM, QuadratureEM, standard_errors
from inference.cli import main
from inference.evaluation.standard_errors import Bound, covariance_of
from inference.files.arviz import load
from inference.items import statistics as items
from inference.items.classes import by_size, open_classes, study_classes
from inference.items.study import study_items
from ppl_models import bernoulli_mixture, categorical_mixture, graded_trait, latent_trait
from ppl_models.data import Said, load_table

VALUES = {"weights": np.array([[1.0, 0.7, 1.6, 1.2]]), "bias": np.array([0.2, -0.5, 0.4, -0.1])}


@pytest.fixture(scope="module")
def every():
    """All sixteen rows, and their probabilities on a fine line."""
    rows = np.array(list(itertools.product((0.0, 1.0), repeat=4)))
    line = np.linspace(-8.0, 8.0, 4001)
    chance = 1.0 / (1.0 + np.exp(-(line[:, None] * VALUES["weights"][0] + VALUES["bias"])))
    density = np.exp(-0.5 * line**2) / np.sqrt(2.0 * np.pi) * (line[1] - line[0])
    each = [density @ np.prod(np.where(row == 1, chance, 1.0 - chance), 1) for row in rows]
    return rows, np.array(each)


def drawn(every, count):
    rows, chance = every
    picked = np.random.default_rng(0).choice(len(rows), count, p=chance / chance.sum())
    return rows[picked]


def test_item_fit_by_counting(every):
    rows, chance = every
    data = drawn(every, 400)
    fit = items.item_fit(data, VALUES)
    for i in range(4):
        wanted = 0.0
        for score in range(1, 4):
            same = rows.sum(1) == score
            expected = chance[same & (rows[:, i] == 1)].sum() / chance[same].sum()
            group = data[data.sum(1) == score]
            gap = group[:, i].mean() - expected
            wanted += len(group) * gap**2 / (expected * (1.0 - expected))
        assert fit.statistic[i] == pytest.approx(wanted, rel=1e-6)
    assert (fit.df == 1).all()


def test_model_fit_by_counting(every):
    """Margins, their covariance and slopes, from the table of all rows."""
    rows, chance = every
    data = drawn(every, 400)
    sets = [*itertools.combinations(range(4), 1), *itertools.combinations(range(4), 2)]
    inside = np.array([[float(all(row[list(s)])) for row in rows] for s in sets])  # (m, rows)
    shares = np.array([np.prod(data[:, list(s)], 1).mean() for s in sets])
    residual = shares - inside @ chance
    covariance = (inside * chance) @ inside.T - np.outer(inside @ chance, inside @ chance)

    def margins(vector):
        values = {"weights": vector[None, :4], "bias": vector[4:]}
        probability, weight = items.curves(values)
        return np.array([weight @ probability[:, list(s)].prod(1) for s in sets])

    first = np.concatenate([VALUES["weights"][0], VALUES["bias"]])
    step = 1e-5 * np.eye(8)
    slope = np.stack([(margins(first + h) - margins(first - h)) / 2e-5 for h in step], 1)
    inverse = np.linalg.inv(covariance)
    inner = np.linalg.inv(slope.T @ inverse @ slope)
    weight = inverse - inverse @ slope @ inner @ slope.T @ inverse
    fit = items.model_fit(data, VALUES)
    assert fit.m2 == pytest.approx(400 * residual @ weight @ residual, rel=1e-3)
    assert fit.df == 2 and 0.0 <= fit.rmsea < 0.2
    # Its interval: noncentral χ² at these ends has M2 as its quantiles of 95 and 5 %.
    for end, share in ((fit.rmsea_high, 0.05), (fit.rmsea_low, 0.95)):
        if end > 0:
            assert scipy.stats.ncx2.cdf(fit.m2, 2, 400 * 2 * end**2) == pytest.approx(
                share, abs=1e-6
            )
    means, pairs = inside @ chance, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert len(sets) == 10
    gaps = []
    for a, b in pairs:
        joint = means[sets.index((a, b))]
        sd = np.sqrt(means[a] * (1 - means[a]) * means[b] * (1 - means[b]))
        gaps.append(np.corrcoef(data.T)[a, b] - (joint - means[a] * means[b]) / sd)
    assert fit.srmsr == pytest.approx(np.sqrt(np.mean(np.square(gaps))), rel=1e-3)
    # Of independent items M2 is the same, with slopes in the biases alone.
    rate, own = data.mean(0), np.eye(4)
    alone = np.prod(np.where(rows == 1, rate, 1 - rate), 1)
    first = rate * (1 - rate)
    slope = np.array(
        [
            [
                own[s[0], i] * first[i]
                if len(s) == 1
                else (i in s) * first[i] * rate[list({*s} - {i})].prod()
                for i in range(4)
            ]
            for s in sets
        ]
    )
    residual = shares - inside @ alone
    covariance = (inside * alone) @ inside.T - np.outer(inside @ alone, inside @ alone)
    inverse = np.linalg.inv(covariance)
    inner = np.linalg.inv(slope.T @ inverse @ slope)
    weight = inverse - inverse @ slope @ inner @ slope.T @ inverse
    null, df = 400 * residual @ weight @ residual, 6
    tli = (null / df - fit.m2 / 2) / (null / df - 1)
    assert fit.tli == pytest.approx(tli, rel=1e-4)
    assert fit.cfi == pytest.approx(1 - max(fit.m2 - 2, 0) / (null - df), rel=1e-4)


LSAT = """3 6 2 11 1 1 3 4 1 8 0 16 0 3 2 15 10 29 14 81 3 28 15 80 16 56 21 173 11 61 28 298"""
"""Section 6 of the Law School Admission Test (Bock & Lieberman 1970): rows 00000 to 11111."""


def test_the_law_school_test_comes_out_to_the_published_digits():
    """As R's ``summary(ltm(LSAT ~ z1))`` prints them (Rizopoulos 2006, JSS 17(5))."""
    rows = np.array(list(itertools.product((0.0, 1.0), repeat=5)))
    data = np.repeat(rows, [int(x) for x in LSAT.split()], axis=0)
    method = QuadratureEM(latent_trait)
    fit = method.run(jax.random.key(0), 500, data, tolerance=1e-7, num_factors=1)
    assert float(fit.losses[-1]) == pytest.approx(2466.653, abs=1e-3)
    np.testing.assert_allclose(fit.params["bias"], [2.773, 0.990, 0.249, 1.285, 2.053], atol=1e-3)
    errors = standard_errors(latent_trait, fit.params, data, num_factors=1)
    study = study_items(latent_trait, fit.params, errors, ((data,), {"num_factors": 1}))
    slopes = [0.825, 0.723, 0.890, 0.688, 0.657]
    np.testing.assert_allclose(study.items["discrimination"], slopes, atol=1e-3)
    spread = [0.2581, 0.1867, 0.2326, 0.1852, 0.2100]
    np.testing.assert_allclose(study.items["discrimination_se"], spread, atol=1e-3)
    spread = [0.8669, 0.3073, 0.0997, 0.4341, 0.8700]
    np.testing.assert_allclose(study.items["difficulty_se"], spread, rtol=5e-3)
    assert len(study.scores["factor_1_se"]) == 1000


CARCINOMA = """34:0000000 2:0000100 6:0100000 1:0100001 4:0100100 5:0100101 2:1000000 1:1010101
2:1100000 1:1100001 2:1100100 7:1100101 1:1100111 1:1101001 2:1101101 3:1101111 13:1110101
5:1110111 10:1111101 16:1111111"""
"""Slides by the ratings of seven pathologists (Landis & Koch 1977; Agresti 2002, table 13.1)."""


def test_the_carcinoma_slides_come_out_to_the_published_digits():
    """Three classes as R's ``poLCA(cbind(A,B,C,D,E,F,G)~1, carcinoma, nclass=3)`` prints them: log
    likelihood, shares and conditional probabilities (Linzer & Lewis 2011, JSS 42(10), section 5.1;
    the likelihood also on the help page of ``carcinoma``)."""
    cells = [x.split(":") for x in CARCINOMA.split()]
    rows = np.array([[float(x) for x in row] for _, row in cells], np.float32)
    data = np.repeat(rows, [int(count) for count, _ in cells], axis=0)
    params, _, losses = quick_run(EM(bernoulli_mixture), 0, 150, data, num_components=3)
    assert losses[-1] == pytest.approx(293.705, abs=1e-3)
    order = np.argsort(params["probs"][:, 0])
    np.testing.assert_allclose(params["mixing"][order], [0.3736, 0.1817, 0.4447], atol=1e-4)
    printed = [
        [0.0573, 0.1379, 0.0, 0.0, 0.0551, 0.0, 0.0],
        [0.5128, 1.0, 0.0, 0.0576, 0.7506, 0.0, 0.6307],
        [1.0, 0.9809, 0.8575, 0.5862, 1.0, 0.4764, 1.0],
    ]
    np.testing.assert_allclose(params["probs"][order], printed, atol=1e-4)
    # The rest of what it prints: G², χ², residual degrees of freedom, shares by modal posterior.
    arguments = (data,), {"num_components": 3}
    known = open_classes(bernoulli_mixture, arguments)
    point = by_size(known, params)
    names = "ABCDEFG"
    study = study_classes(bernoulli_mixture, point, {}, arguments, names, [("1", "2")] * 7, 23)
    wanted = {"g2": 15.26171, "chi2": 20.50336, "df": 95}
    for name, value in wanted.items():
        assert study.measures[name] == pytest.approx(value, abs=1e-3), name
    np.testing.assert_allclose(study.classes["share"], [0.4447, 0.3736, 0.1817], atol=1e-4)
    np.testing.assert_allclose(study.classes["modal_size"], [0.4322, 0.3729, 0.1949], atol=1e-4)
    assert study.profile["category"][:4].tolist() == ["1", "2", "1", "2"]
    np.testing.assert_allclose(study.profile["class_1"][1::2], printed[2], atol=1e-4)
    # Memberships and both entropies, by loops.
    joint = np.array([
        [m * np.prod(np.where(row > 0, p, 1 - p)) for m, p in zip(*point.values(), strict=True)]
        for row in data
    ])  # fmt: skip
    chance = joint / joint.sum(1, keepdims=True)
    np.testing.assert_allclose(study.scores["class_2"], chance[:, 1], atol=1e-6)
    np.testing.assert_array_equal(study.scores["class"], chance.argmax(1) + 1)
    lost = sum(-p * np.log(p) for p in chance.ravel() if p > 0) / len(data)
    share = sum(-p * np.log(p) for p in point["mixing"])
    assert study.measures["entropy"] == pytest.approx(1 - lost / np.log(3), abs=1e-5)
    assert study.measures["entropy_r2"] == pytest.approx(1 - lost / share, abs=1e-5)


def test_classes_of_many_categories_are_lines_in_the_order_of_the_file():
    rng = np.random.default_rng(0)
    data = np.stack([rng.integers(0, k, 200) for k in (2, 3, 2)], 1).astype(np.int8)
    mask = rng.random(data.shape) < 0.8
    point = {
        "mixing": np.array([0.3, 0.7]),
        "probs_2": np.array([[[0.1, 0.9], [0.2, 0.8]], [[0.6, 0.4], [0.0, 1.0]]]),
        "probs_3": np.array([[[0.2, 0.3, 0.5]], [[0.7, 0.2, 0.1]]]),
    }
    kwargs = {"num_components": 2, "levels": (2, 3, 2), "mask": mask}
    known = open_classes(categorical_mixture, ((data,), kwargs))
    point = by_size(known, point)
    assert point["mixing"].tolist() == [0.7, 0.3]
    levels = [("no", "yes"), ("a", "b", "c"), ("0", "1")]
    bounds = [Bound("probs_2", (0, 1, 0), 0.0, 0.01)]
    study = study_classes(
        categorical_mixture, point, point, ((data,), kwargs), "xyz", levels, 9, bounds
    )
    assert study.profile["item"].tolist() == list("xxyyyzz")
    assert study.profile["category"].tolist() == ["no", "yes", "a", "b", "c", "0", "1"]
    np.testing.assert_allclose(study.profile["class_1"], [0.6, 0.4, 0.7, 0.2, 0.1, 0.0, 1.0])
    np.testing.assert_allclose(study.profile["class_2_se"], study.profile["class_2"])
    assert "z = 0 in class 1 = 0 (below 0.01)" in study.lines[-2]
    for row in range(20):
        joint = point["mixing"].copy()
        for column in np.flatnonzero(mask[row]):
            site, place = ("probs_3", 0) if column == 1 else ("probs_2", column // 2)
            joint *= point[site][:, place, data[row, column]]
        got = [study.scores[f"class_{c}"][row] for c in (1, 2)]
        np.testing.assert_allclose(got, joint / joint.sum(), atol=1e-12)


def test_a_rotation_turns_scores_and_information_with_the_loadings():
    rng = np.random.default_rng(0)
    weights = np.array([[1.2, 1.5, 1.0, 0.4, 0.2, 0.3], [0.2, -0.3, 0.1, 1.1, 1.6, 0.9]])
    data = (rng.random((40, 6)) < 0.5) + 0.0
    arguments = ((data,), {"num_factors": 2})
    point = {"weights": weights, "bias": np.zeros(6)}
    plain = study_items(latent_trait, point, {}, arguments)
    rotated = study_items(latent_trait, point, {}, arguments, rotation="oblimin")
    assert list(rotated.factors) == ["factor_1", "factor_2"] and not plain.factors
    correlation = rotated.factors["factor_1"][1]
    assert rotated.measures["correlation_1_2"] == correlation != 0.0
    # Whatever the factors are called, what they predict is the same.
    first, second = (
        np.stack([x.items["loading_1"], x.items["loading_2"]]) for x in (plain, rotated)
    )
    scores = [np.stack([x.scores["factor_1"], x.scores["factor_2"]], 1) for x in (plain, rotated)]
    np.testing.assert_allclose(scores[0] @ first, scores[1] @ second, atol=1e-9)
    between = np.array([[1.0, correlation], [correlation, 1.0]])
    np.testing.assert_allclose(first.T @ first, second.T @ between @ second, atol=1e-9)


def test_a_model_that_does_not_hold_is_told(every):
    """Two pairs of items that repeat each other are no one factor."""
    del every
    rng = np.random.default_rng(1)
    halves = rng.random((500, 3)) < 0.5
    data = np.hstack([halves, halves ^ (rng.random((500, 3)) < 0.1)]) + 0.0
    how = {"tolerance": 1e-7, "num_factors": 1}
    fitted = QuadratureEM(latent_trait).run(jax.random.key(0), 200, data, **how)
    fit = items.model_fit(data, {x: np.asarray(v, float) for x, v in fitted.params.items()})
    assert fit.p_value < 1e-6 and fit.rmsea > 0.1


def test_the_command_writes_every_table_twice(tmp_path):
    """Items, scores, information, measures and groups, as CSV and in the netCDF."""
    rng = np.random.default_rng(0)
    chance = 1 / (1 + np.exp(-1.2 * rng.normal(size=(240, 1)) * np.ones(5)))
    frame = pd.DataFrame((rng.random(chance.shape) < chance) * 1, columns=list("abcde"))
    frame.insert(0, "who", [f"p{i}" for i in range(240)])
    frame.insert(1, "place", np.where(np.arange(240) % 3, "city", "village"))
    frame.to_csv(tmp_path / "data.csv", index=False)
    said = ["--data", str(tmp_path / "data.csv"), "--id", "who", "--group", "place"]
    out = str(tmp_path / "fit.nc")
    assert main(["fit", "latent_trait", *said, "--set", "num_factors=1", "--out", out]) == 0
    groups, _ = load(out)
    dims = {"items": "column", "scores": "row", "information": "point", "measures": "measure",
            "groups": "column"}  # fmt: skip
    for name, dim in dims.items():
        table = pd.read_csv(tmp_path / f"fit_{name}.csv", index_col=0)
        assert table.index.tolist() == groups[name][dim].values.tolist()
        assert list(table.columns) == list(groups[name].data_vars)
        for column in table:
            np.testing.assert_allclose(table[column], groups[name][column], rtol=1e-5)
    measures = groups["measures"]["value"].to_series()
    of = measures["log_likelihood"]
    assert measures["aic"] == pytest.approx(2 * 10 - 2 * of)
    assert measures["bic"] == pytest.approx(10 * np.log(240) - 2 * of)
    assert {"reliability_1", "m2", "rmsea"} <= set(measures.index)
    assert groups["scores"]["factor_1"].sel(row="p7").shape == ()


def test_items_of_mixed_levels_stand_as_the_table_has_them():
    """Thresholds and their errors, from the parameters and their covariance by differences."""
    levels = (3, 2, 3)
    point = {
        "weights": np.array([[1.5, 2.0, -1.0]]),
        "cutpoints_2": np.array([[0.4]]),
        "cutpoints_3": np.array([[-0.8, 0.7], [-1.2, 0.1]]),
    }
    rng = np.random.default_rng(0)
    cuts = [point["cutpoints_3"][0], point["cutpoints_2"][0], point["cutpoints_3"][1]]
    noisy = rng.normal(size=(600, 1)) * point["weights"][0] + rng.logistic(size=(600, 3))
    data = np.stack([(noisy[:, [i]] > cuts[i]).sum(1) for i in range(3)], 1)
    kwargs = {"levels": levels, "num_factors": 1}
    errors = standard_errors(graded_trait, point, data, **kwargs)
    columns = study_items(graded_trait, point, errors, ((data,), kwargs)).items
    np.testing.assert_allclose(columns["discrimination"], point["weights"][0])
    np.testing.assert_allclose(columns["difficulty_1"], [-0.8 / 1.5, 0.4 / 2.0, 1.2])
    np.testing.assert_allclose(columns["difficulty_2"], [0.7 / 1.5, np.nan, -0.1])
    np.testing.assert_allclose(columns["discrimination_se"], errors["weights"][0], rtol=1e-5)
    covariance = covariance_of(graded_trait, point, (data,), kwargs)
    slope = np.zeros(8)
    slope[[0, 5]] = -0.7 / 1.5**2, 1.0 / 1.5  # of c / w in w and c, at the second cutpoint
    assert columns["difficulty_2_se"][0] == pytest.approx(np.sqrt(slope @ covariance @ slope))


def test_one_slope_for_all_items_comes_out_to_the_published_digits(tmp_path, monkeypatch, capsys):
    """As R's ``rasch(LSAT)`` prints it (Rizopoulos 2006), by the name that analysts type."""
    monkeypatch.chdir(tmp_path)
    rows = np.array(list(itertools.product((0, 1), repeat=5)))
    data = np.repeat(rows, [int(x) for x in LSAT.split()], axis=0)
    pd.DataFrame(data, columns=list("abcde")).to_csv("lsat.csv")
    drawn = ["--figure", "fit.pdf", "--report", "fit.html"]
    assert main(["fit", "rasch", "--data", "lsat.csv", "--out", "fit.nc", *drawn]) == 0
    table = pd.read_csv("fit_items.csv", index_col="item")
    difficulty = [-3.615, -1.322, -0.318, -1.730, -2.780]
    np.testing.assert_allclose(table["difficulty"], difficulty, atol=1e-3)
    np.testing.assert_allclose(table["discrimination"], 0.755, atol=1e-3)
    np.testing.assert_allclose(table["discrimination_se"], 0.069, atol=1e-3)
    measures = pd.read_csv("fit_measures.csv", index_col="measure")["value"]
    assert measures["log_likelihood"] == pytest.approx(-2466.938, abs=1e-3)
    assert measures["free_parameters"] == 6 and "m2" not in measures
    printed = capsys.readouterr().out
    assert printed.count("0.7551") == 5 and "another" not in printed
    page = Path("fit.html").read_text()
    assert "default-src 'none'" in page and page.count("<svg") == 3 and "<script" not in page
    assert page.count("0.7551") == 5 and "<dt>bic</dt>" in page and "Item curves" in page
    assert Path("fit.pdf").read_bytes()[:4] == b"%PDF"


def test_answers_are_scored_by_their_key(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.choice(list("ABCD"), (60, 3)), columns=["q1", "q2", "note"])
    frame.loc[3, "q1"] = None
    frame.to_csv("answers.csv", index=False)
    (tmp_path / "key.csv").write_text("q1,B\nq2,A\nq2,C\n")
    assert main(["check", "2PL", "--data", "answers.csv"]) == 2
    assert "--key-of-answers FILE scores right answers" in capsys.readouterr().err
    said = Said(answers={"q1": ("B",), "q2": ("A", "C")})
    table = load_table("answers.csv", said=said)
    assert table.columns == ("q1", "q2") and not table.mask[3, 0]
    wanted = np.stack([frame.q1 == "B", frame.q2.isin(["A", "C"])], 1)
    np.testing.assert_array_equal(table.values[table.mask], wanted[table.mask])
    assert main(["check", "2PL", "--data", "answers.csv", "--key-of-answers", "key.csv"]) == 0


def test_known_items_score_and_link(tmp_path, monkeypatch, capsys):
    """With items of a fit held, new rows have the scores of that fit, and a new item is where the
    likelihood of all rows, summed on a fine line, is largest in it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    weights, bias = np.array([1.2, 0.8, 1.6, 1.0]), np.array([0.3, -0.6, 0.1, -0.2])
    factor = rng.normal(size=(500, 1))
    data = (rng.random((500, 4)) < 1 / (1 + np.exp(-(factor * weights + bias)))).astype(int)
    pd.DataFrame(data, columns=list("abcd")).to_csv("rows.csv", index=False)
    known = pd.DataFrame({"item": list("abc"), "discrimination": weights[:3]})
    known.assign(difficulty=-bias[:3] / weights[:3]).to_csv("items.csv", index=False)
    assert main(["fit", "2PL", "--data", "rows.csv", "--fix", "items.csv", "--out", "fit.nc"]) == 0
    table = pd.read_csv("fit_items.csv", index_col="item")
    np.testing.assert_allclose(table["discrimination"][:3], weights[:3], rtol=1e-5)
    np.testing.assert_allclose(table["intercept"][:3], bias[:3], rtol=1e-5)
    assert table["discrimination_se"].isna().tolist() == [True, True, True, False]
    line = np.linspace(-7.0, 7.0, 701)
    density = np.exp(-0.5 * line**2) * (line[1] - line[0]) / np.sqrt(2 * np.pi)

    def minus(new):
        w, b = np.append(weights[:3], new[0]), np.append(bias[:3], new[1])
        prob = 1 / (1 + np.exp(-(line[:, None] * w + b)))
        joint = np.exp(np.log(prob) @ data.T + np.log1p(-prob) @ (1 - data.T))
        return -np.log(joint.T @ density).sum()

    best = scipy.optimize.minimize(minus, [1.0, 0.0], method="Nelder-Mead", tol=1e-8).x
    found = table.loc["d", ["discrimination", "intercept"]]
    np.testing.assert_allclose(found, best, atol=2e-3)
    measures = pd.read_csv("fit_measures.csv", index_col="measure")["value"]
    assert measures["free_parameters"] == 2
    known.to_csv("items.csv", index=False)
    command = "fit 2PL --data rows.csv --fix items.csv --out fit.nc"
    assert main(command.split()) == 2
    assert "item 'a' has no number in the column difficulty" in capsys.readouterr().err
    command = "fit LCA --set num_classes=2 --data rows.csv --fix items.csv --out f.nc"
    assert main(command.split()) == 2
    assert "has no slope and intercept for each item: 2PL has" in capsys.readouterr().err
