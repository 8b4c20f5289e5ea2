"""The experiments of the combination machine, at small size."""

import json

import numpy as np
import pytest

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


def test_digits_command_takes_ones_own_rows(tmp_path):
    """Images of 8×8 from a file: the first half trains; every row of the table has its measures."""
    import jax

    data = np.asarray(combination_target(jax.random.key(0), 120).data).astype(np.uint8)
    file, out, figure = (tmp_path / x for x in ("rows.npy", "digits.json", "digits.png"))
    np.save(file, data)
    arguments = ["--data", str(file), "--units", "5", "--runs", "1", "--steps", "3"]
    arguments += ["--json", str(out), "--figure", str(figure)]
    assert main(["reproduce", "combination-digits", *arguments]) == 0
    numbers = json.loads(out.read_text())
    assert list(numbers["table"]) == list(combination_digits.ROWS)
    assert numbers["rows"] == 60 and numbers["units"] == 5
    product = numbers["table"]["product"]
    rate = (data[:60].sum(0) + 0.5) / 61
    loss = np.where(data[60:] == 1, np.log2(rate), np.log2(1 - rate)).mean()
    np.testing.assert_allclose(product["log_loss"]["test"], -loss, rtol=1e-4)
    assert product["reconstruction"] == product["log_loss"]
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
