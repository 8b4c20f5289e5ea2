"""`latentbits choose`: what it prints, draws and refuses."""

from types import SimpleNamespace

import numpy as np
import pytest

from inference import EM
from inference.cli import main
from inference.items import choosing
from inference.items.estimators import LatentTrait
from ppl_models import bernoulli_mixture, bernoulli_product


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    probability = 1 / (1 + np.exp(-rng.normal(size=(91, 1)) * [1.0, 2.0, 1.5, 1.0]))
    file = tmp_path_factory.mktemp("choose") / "answers.csv"
    np.savetxt(
        file, rng.random(probability.shape) < probability, "%d", ",", header="a,b,c,d", comments=""
    )
    return file


def test_the_smallest_of_equals_is_taken(data, capsys):
    figure = data.with_name("curve.svg")
    said = ["choose", "latent_trait", "--data", str(data), "--over", "num_factors=1..2"]
    more = ["--folds", "3", "--steps", "8", "--bootstrap", "3", "--figure", str(figure)]
    assert main([*said, *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    size, mean, _, total, aic, _, free, *untested = lines[1].split()
    *_, ratio, share, _, tables = lines[2].replace("≤ ", "").split()
    assert untested == ["—"] * 4 and tables == "3" and float(share) in (0.25, 0.5, 0.75, 1.0)
    gain = 2 * (float(lines[2].split()[3]) - float(total))
    assert float(ratio) == pytest.approx(gain, abs=0.05)
    assert lines[6].startswith("by LR     num_factors=1: 2 against 1 has p")
    assert lines[0].startswith("num_factors") and (size, free) == ("1", "8")
    assert lines[3].startswith("take      num_factors=1")
    assert float(aic) == pytest.approx(2 * 8 - 2 * float(total), abs=0.02)
    rows = np.loadtxt(data, delimiter=",", skiprows=1)
    held = [
        LatentTrait(random_state=0, max_steps=8).fit(rows[train]).score_samples(rows[test])
        for train, test in choosing.folds_of(len(rows), 3, 0)
    ]
    assert len(np.concatenate(held)) == 91  # each row once
    assert float(mean) == pytest.approx(np.concatenate(held).mean(), abs=0.01)  # from other starts
    assert figure.read_text().startswith("<?xml")


def made(monkeypatch, gains, tables):
    """Sizes that gain so much on the observed rows, and on the table drawn from a seed."""
    whole = choosing.Measures(0.0, 0.0, "", 1, 4)
    totals = np.concatenate([[0.0], np.cumsum(np.array(gains) / 2)])
    choices = []
    for k, total in enumerate(totals):
        fit = SimpleNamespace(fit=lambda *_: {}, log_likelihood=lambda *args, k=k: k * args[1] / 2)
        measures = whole._replace(log_likelihood=total)
        choices.append(choosing.Choice(k + 1, np.zeros(2), measures, None, {}, fit))
    monkeypatch.setattr(choosing, "tables_like", lambda *_: lambda seed: np.array([tables(seed)]))
    return choices


def test_a_size_is_tested_against_the_one_before_up_to_the_first_that_is_not_needed(monkeypatch):
    choices = made(monkeypatch, [5.0, 0.5, 9.0], np.ones_like)
    compared = choosing.compare_sizes(choices, np.zeros((4, 2)), None, replicates=39)
    assert [(x.size, x.replicates, x.exceeding) for x in compared] == [(2, 39, 0), (3, 10, 10)]
    assert [x.p_value for x in compared] == [1 / 40, 1.0]
    # One table in three gains as much: ten of them are enough.
    choices = made(monkeypatch, [0.5], lambda seed: float(seed % 3 == 0))
    (compared,) = choosing.compare_sizes(choices, np.zeros((4, 2)), None, replicates=99)
    assert (compared.replicates, compared.p_value) == (30, 1 / 3)
    assert compared.error == pytest.approx(np.sqrt(1 / 3 * 2 / 3 / 30))
    assert choosing.compare_sizes(choices, np.zeros((4, 2)), None, budget=-1.0) == []


def test_tables_are_drawn_from_the_smaller_fit():
    params = {"probs": np.array([0.9, 0.2, 0.5], np.float32)}
    rows, mask = np.zeros((4000, 3), np.float32), np.ones((4000, 3), bool)
    rows[0], mask[:100, 2] = 1.0, False
    sized = choosing.Sized(bernoulli_product, {}, None, 1)
    draw = choosing.tables_like(choosing.Choice(1, rows, None, None, params, sized), rows, mask)
    table = draw(0)
    assert table.shape == rows.shape and not (table == draw(1)).all() and not table[:100, 2].any()
    error = 4 * 0.5 / np.sqrt(3900)
    np.testing.assert_allclose(table[100:].mean(0), params["probs"], atol=error)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("num_causes=1..2", "--over num_causes: latent_trait has no"),
        ("num_factors=1..2", "--folds 99"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(data, capsys, over, words):
    more = ["--folds", "99"] if words.startswith("--folds") else []
    assert main(["choose", "latent_trait", "--data", str(data), "--over", over, *more]) == 2
    assert words in capsys.readouterr().err


def test_a_fold_padded_to_the_size_of_the_table_is_fitted_as_it_is():
    rows = (np.random.default_rng(0).random((130, 4)) < [0.2, 0.4, 0.6, 0.8]).astype(np.int8)
    alone = choosing.Sized(bernoulli_mixture, {"num_components": 2}, EM(bernoulli_mixture), 15)
    together, fold = alone._replace(size=130), rows[:87]
    assert together.padded(fold, None).args[0].shape == (130, 4)
    found, wanted = (one.fit(0, fold, None) for one in (together, alone))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-4)
    of_rows = [one.log_likelihood(wanted, rows[87:], None) for one in (together, alone)]
    assert of_rows[0].shape == (43,)
    np.testing.assert_allclose(*of_rows, atol=1e-5)
