"""The experiments of the combination machine, at small size."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from inference.cli import main
from inference.studies.papers import combination, combination_digits
from ppl_models.data import combination_target


def traced(function, given):
    """A function that is traced, not compiled, and gives numbers of the right shapes."""

    def stand_in(*arguments):
        given.append(arguments)
        shapes = jax.eval_shape(lambda: function(*arguments))
        return jax.tree.map(lambda x: jnp.full(x.shape, 0.5, x.dtype), shapes)

    return stand_in


def test_synthetic_command_writes_the_papers_table(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(combination, "trial", traced(combination.trial, given))
    out, figure = tmp_path / "synthetic.json", tmp_path / "synthetic.png"
    arguments = ["--seeds", "2", "--num-data", "200", "--steps", "20", "--json", str(out)]
    name = "combination-synthetic-small"
    assert main(["reproduce", name, *arguments, "--figure", str(figure)]) == 0
    assert given[0][:3] == (combination.SMALL, 200, 20)
    numbers = json.loads(out.read_text())
    table = numbers["table"]
    assert list(table) == list(combination.ROWS)
    for row in table.values():
        assert list(row) == list(combination.MEASURES)
        assert all(set(value) == {"train", "test"} for value in row.values())
    assert numbers["seeds"] == 2 and numbers["made_by"]["experiment"] == name
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_orderings_are_counted_over_the_seeds():
    def measures(losses):
        value = combination.Measure(np.array(losses), np.zeros(3))
        return dict.fromkeys(combination.MEASURES, value)

    test = {
        "true_model": measures([0.4, 0.4, 0.4]),
        "gradient": measures([0.5, 0.43, 0.5]),
        "pursuit": measures([0.9, 0.9, 0.45]),
        "pursuit_gradient_100": measures([0.6, 0.6, 0.6]),
        "pursuit_gradient": measures([0.41, 0.44, 0.42]),
    }
    numbers = combination.summary(combination.Trial({}, test, test))
    np.testing.assert_allclose(
        list(numbers["orderings"].values()), [2 / 3, 2 / 3, 1.0, 0.04, 0.07 / 3], rtol=1e-6
    )
    np.testing.assert_allclose(numbers["table"]["gradient"]["log_loss"]["test"], 1.43 / 3)
    error = np.std([0.5, 0.43, 0.5], ddof=1) / 3**0.5
    np.testing.assert_allclose(numbers["standard_errors"]["gradient"]["log_loss"]["test"], error)


def test_digits_command_takes_ones_own_rows(tmp_path, monkeypatch):
    """Images of 8×8 from a file: the first half trains; every row of the table has its measures.

    The run itself is traced, not compiled: the methods in it have tests of their own.
    """
    given = []
    one_run = traced(combination_digits.one_run, given)
    monkeypatch.setattr(combination_digits, "one_run", one_run)
    data = np.asarray(combination_target(random.key(0), 120).data).astype(np.uint8)
    file, out, figure = (tmp_path / x for x in ("rows.npy", "digits.json", "digits.png"))
    np.save(file, data)
    arguments = ["--data", str(file), "--units", "5", "--runs", "2", "--steps", "3"]
    arguments += ["--json", str(out), "--figure", str(figure)]
    assert main(["reproduce", "combination-digits", *arguments]) == 0
    size, train, test, _ = given[0]
    assert train.shape == test.shape == (60, 64)
    assert size.units == 5 and size.steps == 3
    numbers = json.loads(out.read_text())
    assert list(numbers["table"]) == list(combination_digits.ROWS)
    for row in numbers["table"].values():
        assert {name: set(value) for name, value in row.items()} == {
            name: {"train", "test"} for name in combination_digits.MEASURES
        }
    assert numbers["rows"] == 60 and numbers["units"] == 5
    assert set(numbers["log_normalizer_error"]) == {"combination", "combination_improved"}
    assert figure.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "wrong",
    [
        ["combination-synthetic", "--seeds", "0"],
        ["combination-synthetic-small", "--num-data", "1"],
        ["combination-digits", "--units", "0"],
        ["combination-digits", "--data", "nowhere.npy"],
    ],
)
def test_commands_refuse_nonsense(wrong, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["reproduce", *wrong, "--json", str(out)]) == 2
    assert not out.exists()
    assert capsys.readouterr().err.count("\n") == 1
