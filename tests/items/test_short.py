"""A short form against loops over all patterns of answers on a fine line."""

import itertools

import numpy as np
import pandas as pd

from inference.cli import main
from inference.items.short import short_form

VALUES = {
    "weights": np.array([[0.6, 1.8, 1.1, 0.3, 1.4]]),
    "bias": np.array([0.5, -1.0, 0.2, 0.1, 0.8]),
    "guessing": np.array([0.0, 0.1, 0.2, 0.0, 0.0]),
}
LINE = np.linspace(-8.0, 8.0, 2001)
WEIGHT = np.exp(-0.5 * LINE**2) / np.exp(-0.5 * LINE**2).sum()


def chance(item):
    logistic = 1.0 / (1.0 + np.exp(-(VALUES["weights"][0, item] * LINE + VALUES["bias"][item])))
    return VALUES["guessing"][item] + (1.0 - VALUES["guessing"][item]) * logistic


def test_items_are_taken_by_what_they_leave_unknown():
    def left(items):
        total = np.ones_like(LINE)
        for i in items:
            prob = chance(i)
            total += np.gradient(prob, LINE) ** 2 / (prob * (1.0 - prob))
        return WEIGHT @ (1.0 / total)

    form, taken = short_form(VALUES, 3), []
    for reliability in form.reliability:
        rest = [i for i in range(5) if i not in taken]
        taken.append(min(rest, key=lambda i: left([*taken, i])))
        np.testing.assert_allclose(reliability, 1.0 - left(taken), atol=1e-3)
    assert form.items.tolist() == taken
    np.testing.assert_allclose(form.whole, 1.0 - left(range(5)), atol=1e-3)


def test_the_whole_score_is_predicted_by_counting_patterns():
    form = short_form(VALUES, 2)
    table = np.zeros((3, 6))
    for row in itertools.product((0, 1), repeat=5):
        each = np.prod([chance(i) if x else 1.0 - chance(i) for i, x in enumerate(row)], 0)
        table[sum(row[i] for i in form.items), sum(row)] += WEIGHT @ each
    table /= table.sum(1, keepdims=True)
    np.testing.assert_allclose(form.mean, table @ np.arange(6), atol=1e-4)
    for k in range(3):
        below = table[k].cumsum()
        assert (form.low[k], form.high[k]) == (np.argmax(below >= 0.05), np.argmax(below >= 0.95))


def test_the_command_shortens_a_fit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    bits = (
        rng.random((200, 5))
        < np.stack([chance(i) for i in range(5)], 1)[rng.choice(len(LINE), 200, p=WEIGHT)]
    )
    pd.DataFrame(bits + 0, columns=list("abcde")).to_csv("rows.csv")
    assert main(["fit", "2PL", "--data", "rows.csv", "--out", "fit.nc"]) == 0
    capsys.readouterr()
    assert main(["shorten", "fit.nc", "--items", "2", "--out", "short.csv"]) == 0
    printed = capsys.readouterr().out
    table = pd.read_csv("short.csv")
    assert table["right"].tolist() == [0, 1, 2] and (table.low <= table.whole).all()
    assert f"{table.whole[1]:.4f}" in printed
    assert main(["shorten", "fit.nc", "--items", "5"]) == 2
    assert "--items 5: wanted 1 to 4 of 5 items" in capsys.readouterr().err
