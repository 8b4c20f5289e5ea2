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


def test_synthetic_command_writes_the_papers_table(tmp_path):
    out, figure = tmp_path / "synthetic.json", tmp_path / "synthetic.png"
    arguments = ["--seeds", "2", "--num-data", "200", "--steps", "20", "--json", str(out)]
    assert main(["reproduce", "combination-synthetic", *arguments, "--figure", str(figure)]) == 0
    numbers = json.loads(out.read_text())
    table = numbers["table"]
    assert list(table) == list(combination.ROWS)
    for row in table.values():
        assert list(row) == list(combination.MEASURES)
        assert all(set(value) == {"train", "test"} for value in row.values())
        assert all(0 < x < 2 for value in row.values() for x in value.values())
    # Twenty steps from what pursuit found are already better than what it found.
    assert table["pursuit_gradient"]["log_loss"]["test"] < table["pursuit"]["log_loss"]["test"]
    assert table["true_model"]["log_loss"]["test"] < table["gradient"]["log_loss"]["test"]
    assert numbers["seeds"] == 2 and numbers["made_by"]["experiment"] == "combination-synthetic"
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_digits_command_takes_ones_own_rows(tmp_path, monkeypatch):
    """Images of 8×8 from a file: the first half trains; every row of the table has its measures.

    The run itself is traced, not compiled: the methods in it have tests of their own.
    """
    given = {}

    def traced(size, train, test, key):
        given.update(size=size, train=train.shape, test=test.shape)
        shapes = jax.eval_shape(lambda: one_run(size, train, test, key))
        return jax.tree.map(lambda x: jnp.full(x.shape, 0.5, x.dtype), shapes)

    one_run = combination_digits.one_run
    monkeypatch.setattr(combination_digits, "one_run", traced)
    data = np.asarray(combination_target(random.key(0), 120).data).astype(np.uint8)
    file, out, figure = (tmp_path / x for x in ("rows.npy", "digits.json", "digits.png"))
    np.save(file, data)
    arguments = ["--data", str(file), "--units", "5", "--runs", "2", "--steps", "3"]
    arguments += ["--json", str(out), "--figure", str(figure)]
    assert main(["reproduce", "combination-digits", *arguments]) == 0
    assert given["train"] == given["test"] == (60, 64)
    assert given["size"].units == 5 and given["size"].steps == 3
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
