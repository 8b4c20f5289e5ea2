"""Every experiment of the papers and every notebook runs as itself, at its smallest size.

A notebook is executed cell by cell. Its cell tagged "parameters" holds its sizes, which are
replaced here: those of its experiments by `Experiment.smallest`, the others by `SIZES`.
"""

import ast
import json
from functools import cache
from pathlib import Path

import jupytext
import numpy as np
import pytest

from inference import public
from inference.cli import main
from inference.studies import notebook as studies
from inference.studies.output import plain
from inference.studies.papers import combination, combination_digits
from inference.studies.papers.experiment import experiments

FOLDER = Path(__file__).parents[2] / "notebooks"
SIZES = {
    "0": {"num_days": 20, "num_draws": 5, "num_steps": 2},
    "1": {"num_data": 1000, "num_rows": 60, "num_columns": 5, "methods": "MomentInversion"},
    "2": {"num_data": 20, "budget": 0.1, "methods": "ExactGradient"},
    "3": {"num_data": 40, "budget": 0.1, "methods": "EM"},
    "4": {"num_data": 60, "num_draws": 40, "methods": "NUTS"},
    "5": {"num_data": 40, "budget": 0.1, "methods": "GibbsEM"},
    "6": {"num_steps": 4, "num_draws": 40, "every": 20},
}


@cache
def remembered(name, options):
    """One run serves the test of the experiment and its notebook."""
    return studies.reproduce(name, **json.loads(options))


def reproduce(name, **options):
    return remembered(name, json.dumps(options, default=str))


def finite(value):
    if isinstance(value, dict | list):
        return all(map(finite, value.values() if isinstance(value, dict) else value))
    return value is not None and (isinstance(value, str) or np.isfinite(value))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A table of two groups of words, for the experiment that has no data of its own."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 500)
    rate = np.where(np.arange(6) // 3 == group[:, None], 0.7, 0.02)
    file = tmp_path_factory.mktemp("words") / "words.csv"
    table = (rng.random((500, 6)) < rate).astype(int)
    names = "bat,ball,team,disk,file,code"
    np.savetxt(file, table[table.any(1)], fmt="%d", delimiter=",", header=names, comments="")
    return file


def ring(numbers):
    """Half of the spins' eigenvalues are positive, two of the Gaussian's, in a sample too."""
    for kind in ("positive_eigenvalues_binary", "sample_positive_eigenvalues_binary"):
        assert numbers[kind] == 8
    assert numbers["positive_eigenvalues_gaussian"] == numbers["sample_rank_gaussian"] == 2
    assert numbers["positive_eigenvalues_scaled"] == 2
    assert not np.allclose(numbers["first_two_eigenvalues_scaled"], 8, rtol=0.02)
    assert numbers["largest_other"] <= 1e-6 and numbers["sample_largest_other"] < 0.01


def constraint(numbers):
    assert np.isclose(numbers["min_eigenvalue"], -0.5, atol=1e-9)
    for size, least in numbers["min_eigenvalue_by_size"].items():
        pairs = int(size) - 1
        assert np.isclose(least, 1 - pairs * np.sin(np.pi / (2 * pairs)), atol=1e-9)


def clipped_digits(numbers):
    assert numbers["columns"] == 64 and numbers["constant_columns"] > 0
    assert numbers["negative_eigenvalues"] > 0 > numbers["least_eigenvalue"]
    assert numbers["share_of_first_2_gaussian"] > numbers["share_of_first_2_binary"]
    assert 0 < numbers["bits_wrong"] < 64 and 0 < numbers["bits_wrong_pca"] < 64
    assert len(numbers["morph_hamming"]) == 2  # three images, two steps between them
    assert 0 < numbers["bits_wrong_hard_clip"] < 64
    assert numbers["morph_grey_pca"] > 0.1  # the clipped path has bits only
    before, after = numbers["positive_eigenvalues_scaled"]
    assert before == after


def neighbours(numbers):
    """At least P + 1 for bounded cells; wedges have two, and the ring's are two flips away."""
    plane = numbers["the plane, exactly"]
    some, central, ring = plane.values()
    assert some["cells"] == some["cells_by_formula"] and some["unbounded_cells"] == 16
    assert some["least_neighbours"] == 2 and some["least_neighbours_bounded"] == 3
    # Every edge is shared by two cells: N² edges.
    assert np.isclose(some["mean_neighbours"] * some["cells"], 2 * 8**2)
    assert central["least_neighbours"] == central["most_neighbours"] == 2
    assert ring["least_neighbours"] == ring["most_neighbours"] == ring["flips_to_a_neighbour"] == 2
    beyond = numbers["3 factors, 50 draws"]
    assert beyond["without"]["share_unbounded"] == 1 and beyond["without"]["least_neighbours"] >= 3
    assert beyond["with biases"]["least_neighbours_bounded"] >= 4


def clipped_errors(numbers):
    """200 and 1600 intervals of 95 %, of which those of a table are not independent."""
    for name in ("eigenvalues", "loadings"):
        assert 0.9 < numbers[name]["inside_of_95_percent_intervals"] <= 0.99
        assert 0.85 < numbers[name]["z"] < 1.15


def hidden(numbers):
    assert numbers["bits_wrong"] == 0 <= numbers["bits_wrong_by_mode"]
    assert numbers["error_of_mean_of_draws"] < numbers["error_of_deepest_point"]
    assert numbers["inside_of_90_percent_intervals"] > 0.6  # 36 of them, of 40 draws each


def clipped_baselines(numbers):
    methods = numbers["methods"]
    assert {*methods} == {"moments, pairs", "moments, factors", "SVI, normal guide", "NUTS"}
    assert all(row["mean_abs_error"] < 0.4 for row in methods.values())


def combination_table(study):
    """Each row has each measure, on training and on test rows."""

    def check(numbers):
        assert list(numbers["table"]) == list(study.ROWS)
        for row in numbers["table"].values():
            assert list(row) == list(combination.MEASURES)
            assert all({*value} == {"train", "test"} for value in row.values())
        assert {*numbers.get("log_normalizer_error", ())} <= {*numbers["table"]}

    return check


def noisy_or_lines(numbers):
    assert sum(kind["trials"] for kind in numbers["failures"].values()) == numbers["trials"]
    assert numbers["test_log_likelihood"] < numbers["true_network_log_likelihood"]


def noisy_or_learning(numbers):
    """Nearly flat weights are sampled exactly in any number of sweeps; each way of learning ran."""
    epochs = numbers["by_epoch"]
    assert len(epochs["kl"]) == 3 and abs(epochs["kl"][0]) < 1e-3 > epochs["bias"][0]
    assert epochs["entropy"][0] > epochs["entropy"][-1] and epochs["best"][0] < epochs["best"][-1]
    assert epochs["evidence"][0] < epochs["evidence"][-1]
    assert list(numbers["learned"]) == ["layers", "joint", "no rule"]
    assert 1.2 < numbers["total_correlation_of_the_lines"] < 1.4


def noisy_or_structure(numbers):
    for row in numbers["mean_posterior_by_truth"].values():
        np.testing.assert_allclose(sum(row.values()), 1.0)
    assert 0 < numbers["evidence"]["probability_of_the_truth"] < 1


def combination_curves(numbers):
    assert {*numbers["accuracy"]} >= {"pixels", "machine", "mixture", "principal components"}
    rows = [*numbers["test"].values(), *numbers["test_with_missing_cells"].values()]
    assert all(0 < row["single_bit"] < 0.5 for row in rows)
    assert numbers["rise_at_a_doubling"]["1.0"] > numbers["rise_at_a_doubling"]["0.1"]


def combination_theory(numbers):
    """What holds exactly: parity has no second moments, and no search beats the sorted terms."""
    parity = numbers["parity"]
    np.testing.assert_allclose(parity["eigenvalues"], 1.0)
    np.testing.assert_allclose(parity["single_bit_machine"], 0.1)
    np.testing.assert_allclose(parity["log_loss_machine"], parity["log_loss_true"], atol=1e-4)
    for row in numbers["terms"].values():
        assert row["at most 3 active"] <= row["search"] + 1e-12 <= row["best possible"] + 2e-12
    far = numbers["normality"]
    assert far["1024"]["random means"] < 0.03 < far["4"]["random means"]
    assert min(row["all but one certain"] for row in far.values()) > 0.3


def topics(numbers):
    """Two groups of words are found: better than independent words on new documents."""
    assert numbers["test_log_likelihood"] > numbers["product_log_likelihood"] + 0.1
    assert numbers["test_log_likelihood_error"] == 0.0 and numbers["given_a_word"]
    assert numbers["mixture_log_likelihood"] > numbers["product_log_likelihood"] + 0.1
    assert len(numbers["topics"]) == 2


def bars(numbers):
    """60 rows give πH to √(Hπ(1−π)/N) = 0.16; σ falls by the 10 causes that each column fits."""
    assert numbers["trials"] == 1
    if numbers["recovered"]:
        assert abs(numbers["pi_h_mean"] - 2) < 0.6
        assert abs(numbers["sigma_mean"] - 2 * np.sqrt(1 - 10 / 60)) < 0.15
    else:
        assert numbers["sigma_mean"] > 2  # what is not explained is noise


def patches(numbers):
    assert 0 < numbers["sigma"] < 1.5  # the patches have unit variance
    assert 0 <= numbers["fraction_gabor"] + numbers["fraction_globular"] <= 1


def strength(numbers):
    """A lower bound is below the evidence, and further below where the weights are large."""
    gaps = [x["bound_below_evidence"] for x in numbers.values()]
    assert 0 < gaps[0] < gaps[-1]
    assert all(low <= high for x in numbers.values() for low, high in (x["bound_90"],))


def accuracy(numbers):
    """Each algorithm of table 1; the bound is one, and a divergence is not below zero."""
    numbers = numbers["synthetic"]
    for name in ("bound", "monte_carlo", "quadrature"):
        assert {*numbers[name]} == {"seconds", "compile_seconds", "nll", "bound", "iterations"}
    assert numbers["bound"]["bound"] >= numbers["bound"]["nll"] - 1e-4
    away = np.array(numbers["divergence"]["per_datum"])
    assert len(away) == 100 and (away > -1e-3).all()
    assert numbers["speedup"] > 0


def components(numbers):
    """One noise makes it principal components, with their own σ² (Tipping & Bishop 1999, eq. 8)."""
    one, each = numbers["numbers"]["one noise"], numbers["numbers"]["a noise of each column"]
    left_over = numbers["numbers"]["variance_left_over_by_pca"]
    assert np.isclose(one["variance_of_noise"], left_over, rtol=1e-3)
    assert one["degrees_from_pca"] < 0.1 < 1 < each["degrees_from_pca"]
    for row in numbers["bits"].values():
        assert row["rows_nearest_by_pca"][0] > 0.8 and row["least_canonical_correlation"][0] > 0.9


def mixture(numbers):
    """Rows of three groups are less likely under any other model than under the true one."""
    nats = dict(numbers["nats_per_new_row"])
    assert nats.pop("the true model") > max(nats.values())


def winner(numbers):
    """Other data sets of the same truth: the excess differs, by no more than their errors say."""
    excess = numbers["excess"]
    assert excess["within"] and excess["said"] != excess["again"] > 0 and excess["most_apart"] < 0.1
    assert numbers["seconds"]["most_times"] >= 1.5


CHECKS = {
    "bsc-bars": bars,
    "bsc-patches": patches,
    "clipped-baselines": clipped_baselines,
    "clipped-constraint": constraint,
    "clipped-digits": clipped_digits,
    "clipped-errors": clipped_errors,
    "clipped-hidden": hidden,
    "clipped-neighbours": neighbours,
    "clipped-ring": ring,
    "combination-curves": combination_curves,
    "combination-digits": combination_table(combination_digits),
    "combination-synthetic": combination_table(combination),
    "combination-synthetic-small": combination_table(combination),
    "combination-theory": combination_theory,
    "noisyor-learning": noisy_or_learning,
    "noisyor-lines": noisy_or_lines,
    "noisyor-structure": noisy_or_structure,
    "noisyor-words": topics,
    "trait-accuracy": accuracy,
    "trait-mixture": mixture,
    "trait-pca": components,
    "trait-strength": strength,
    "winner": winner,
}


@pytest.mark.parametrize("name", sorted(experiments()))
def test_experiment_runs_as_itself(name, words):
    options = experiments()[name].smallest | ({"data": words} if name == "noisyor-words" else {})
    outcome = reproduce(name, **options)
    numbers = plain(outcome.numbers)
    assert numbers and finite(numbers), numbers
    CHECKS.get(name, lambda _: None)(numbers)
    png, shown = outcome._repr_png_()
    assert png[:4] == b"\x89PNG" and len(png) > 2_000 and shown["width"] > 300


# So few draws may all be one: ArviZ divides by their variance.
@pytest.mark.filterwarnings("ignore::RuntimeWarning:arviz")
@pytest.mark.parametrize("path", sorted(FOLDER.glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_notebook_runs_as_itself(path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(public, "reproduce", reproduce)
    sizes = dict(SIZES[path.stem[0]])
    shown = []
    names = {"display": shown.append}  # of Jupyter
    replaced = 0
    for cell in jupytext.read(path, fmt="py:percent").cells:
        if cell.cell_type != "code":
            continue
        # As Jupyter does, where the last line of a cell is a value.
        tree = ast.parse(cell.source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
        if "parameters" in cell.metadata.get("tags", ()):
            replaced += 1
            if "methods" in sizes:
                sizes["methods"] = [x for x in names["methods"] if x in sizes["methods"].split()]
            chosen = names.get("experiments", {})
            sizes["experiments"] = {name: experiments()[name].smallest for name in chosen}
            assert {*sizes} - {"experiments"} <= {*names}, "sizes that the notebook does not have"
            names.update(sizes)
    assert replaced == 1
    if "race" in names:
        assert any(x is names["race"] for x in shown)
        assert all(x in names["race"]._repr_markdown_() for x in names["methods"])
        assert names["race"].paths._repr_png_()[0][:4] == b"\x89PNG"
    plt.close("all")


def test_the_command_writes_numbers_and_figure(tmp_path):
    out, figure = tmp_path / "numbers.json", tmp_path / "figure.png"
    files = ["--json", str(out), "--figure", str(figure)]
    assert main(["reproduce", "clipped-constraint", *files]) == 0
    numbers = json.loads(out.read_text())
    constraint(numbers)
    assert numbers["made_by"]["experiment"] == "clipped-constraint"
    assert figure.read_bytes()[:4] == b"\x89PNG" and figure.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("clipped-digits --rank 0", "--rank 0"),
        ("clipped-digits --steps 1", "--steps 1"),
        ("clipped-ring --rows 0", "--rows 0"),
        ("clipped-ring --size 7", "--size 7"),
        ("clipped-baselines --columns 2", "--columns"),
        ("combination-synthetic --seeds 0", "--seeds"),
        ("combination-synthetic-small --num-data 1", "--num-data"),
        ("combination-digits --units 0", "--units"),
        ("combination-digits --data nowhere.npy", "nowhere.npy"),
        ("combination-curves --units 1", "--units"),
        ("combination-theory --trials 0", "--trials"),
        ("noisyor-learning --num-data 50", "--num-data"),
        ("noisyor-lines --trials 0", "--trials"),
        ("noisyor-lines --num-data 50", "--num-data"),
        ("noisyor-lines --population 1", "--population"),
        ("noisyor-shifter --trials 0", "--trials"),
        ("noisyor-structure --particles 1", "--particles"),
        ("noisyor-words", "--data FILE"),
        ("noisyor-words --data nowhere.csv", "nowhere.csv"),
        ("noisyor-words --data nowhere.csv --causes 0", "--causes"),
        ("bsc-bars --trials 0", "--trials"),
        ("bsc-bars --init-active 11", "--init-active"),
        ("bsc-bars --num-data -1", "--num-data"),
        ("bsc-truncation --steps 0", "--steps"),
        ("bsc-causes --kinds ternary", "'ternary'"),
        ("bsc-patches --centre 3 --surround 1", "--centre"),
    ],
)
def test_nonsense_is_refused_in_one_line(wrong, words, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["reproduce", *wrong.split(), "--json", str(out)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not out.exists()
