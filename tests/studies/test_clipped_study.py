"""The experiments on the clipped Gaussian: their keys, their figures, their options."""

import json

import numpy as np
import pytest

from inference.cli import main
from inference.studies.papers import clipped_gaussian


def reproduce(name, folder, *options):
    files = folder / "numbers.json", folder / "figure.png"
    status = main(["reproduce", name, "--json", str(files[0]), "--figure", str(files[1]), *options])
    assert status == 0 and files[1].stat().st_size > 10_000
    return json.loads(files[0].read_text())


def test_ring(tmp_path, monkeypatch):
    """On a quarter of the paper's ring: half of the spins' eigenvalues, two of the Gaussian's."""
    monkeypatch.setattr(clipped_gaussian, "RING_SIZE", 64)
    numbers = reproduce("clipped-ring", tmp_path)
    assert numbers["positive_eigenvalues_binary"] == 32
    assert numbers["positive_eigenvalues_gaussian"] == 2
    assert numbers["largest_other"] <= 1e-6
    assert numbers["sample_rows"] == 10_000
    assert numbers["sample_positive_eigenvalues_binary"] == 32
    assert numbers["sample_rank_gaussian"] == 2
    assert numbers["sample_largest_other"] < 0.01


def test_constraint(tmp_path):
    numbers = reproduce("clipped-constraint", tmp_path)
    assert np.isclose(numbers["min_eigenvalue"], -0.5, atol=1e-9)
    for size, least in numbers["min_eigenvalue_by_size"].items():
        pairs = int(size) - 1
        assert np.isclose(least, 1 - pairs * np.sin(np.pi / (2 * pairs)), atol=1e-9)


def test_digits_on_a_table_of_ones_own(tmp_path):
    from ppl_models.data import small_digits

    everything = small_digits()
    file = tmp_path / "twos.npy"
    np.save(file, np.asarray(everything.data)[np.asarray(everything.label) == 2])
    numbers = reproduce(
        "clipped-digits", tmp_path, "--data", str(file), "--rank", "4", "--steps", "5"
    )
    assert numbers["columns"] == 64 and numbers["constant_columns"] > 0
    assert numbers["negative_eigenvalues"] > 0 > numbers["least_eigenvalue"]
    assert numbers["share_of_first_4_gaussian"] > numbers["share_of_first_4_binary"]
    assert 0 < numbers["bits_wrong"] < 64 and 0 < numbers["bits_wrong_pca"] < 64
    assert len(numbers["morph_hamming"]) == 4


def test_baselines(tmp_path):
    small = ("--rows", "80", "--columns", "4", "--draws", "30", "--svi-steps", "300")
    methods = reproduce("clipped-baselines", tmp_path, *small)["methods"]
    assert set(methods) == {"moments, pairs", "moments, factors", "SVI, normal guide", "NUTS"}
    assert all(row["mean_abs_error"] < 0.4 for row in methods.values())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("clipped-digits", ("--rank", "0"), "--rank 0"),
        ("clipped-digits", ("--steps", "1"), "--steps 1"),
        ("clipped-ring", ("--rows", "0"), "--rows 0"),
        ("clipped-baselines", ("--columns", "2"), "--columns"),
    ],
)
def test_options_are_checked_first(name, options, words, capsys):
    assert main(["reproduce", name, *options]) == 2
    assert words in capsys.readouterr().err
