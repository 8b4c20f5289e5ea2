"""Every experiment and every notebook runs as itself, at its smallest size.

A notebook is executed cell by cell. Its cell tagged "parameters" holds its sizes, which are
replaced here: those of its experiments by `Experiment.smallest`, the others by `SIZES`.
"""

import ast
import json
from functools import cache
from pathlib import Path

import beyond
import jupytext
import numpy as np
import pytest
import reproduce as script
from beyond import winner
from jax import random
from paper_checks import CHECKS, finite

from inference import public
from inference.cli import main
from inference.files.output import plain
from inference.papers import experiment
from inference.papers.experiment import experiments, in_batches

EXPERIMENTS = {**experiments(), **experiments(beyond)}
FOLDER = Path(__file__).parents[2] / "notebooks"
BY_MAKE = {"8", "9", "10"}
"""Notebooks that compile for a minute or more at any size: `notebooks/make.py` alone runs them.
Their programs are in tests/items, tests/zoo and docs/coming.md."""
RUN = [x for x in sorted(FOLDER.glob("[0-9]*.py")) if x.stem.partition("_")[0] not in BY_MAKE]
SIZES = {
    "0": {"num_days": 20, "num_draws": 5, "num_steps": 2},
    "1": {"num_data": 1000, "num_rows": 60, "num_columns": 5, "methods": "MomentInversion"},
    "2": {"num_data": 20, "budget": 0.1, "methods": "ExactGradient"},
    "3": {"num_data": 40, "budget": 0.1, "methods": "EM"},
    "4": {"num_data": 60, "num_draws": 40, "methods": "NUTS"},
    "5": {"num_data": 40, "budget": 0.1, "methods": "GibbsEM"},
    "6": {"num_steps": 4, "num_draws": 40, "every": 20},
    "7": {"num_steps": 40, "num_draws": 50},
    "11": {"num_steps": 30, "num_draws": 5, "num_rows": 120, "names": ("alike",)},
}


@cache
def remembered(name, options):
    """One run serves the test of the experiment and its notebook."""
    return EXPERIMENTS[name](**json.loads(options))


def reproduce(name, **options):
    return remembered(name, json.dumps(options, default=str))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What no option of an experiment sets: how fine figures are drawn, how often a winner runs."""
    monkeypatch.setattr(experiment, "DOTS", 55)
    monkeypatch.setattr(winner, "MOST", 2)
    monkeypatch.setattr(winner, "REPEATS", 2)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A table of two groups of words, for an experiment that has no data of its own."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 500)
    rate = np.where(np.arange(6) // 3 == group[:, None], 0.7, 0.02)
    file = tmp_path_factory.mktemp("words") / "words.csv"
    table = (rng.random((500, 6)) < rate).astype(int)
    names = "bat,ball,team,disk,file,code"
    np.savetxt(file, table[table.any(1)], fmt="%d", delimiter=",", header=names, comments="")
    return file


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_experiment_runs_as_itself(name, words):
    options = EXPERIMENTS[name].smallest | ({"data": words} if name == "noisyor-words" else {})
    outcome = reproduce(name, **options)
    numbers = plain(outcome.numbers)
    assert numbers and finite(numbers), numbers
    defaults = {name: option.default for name, option in EXPERIMENTS[name].options.items()}
    CHECKS[name](numbers, defaults | options)
    png, shown = outcome._repr_png_()
    assert png[:4] == b"\x89PNG" and len(png) > 2_000 and shown["width"] > 300


# So few draws may all be one: ArviZ divides by their variance.
@pytest.mark.filterwarnings("ignore::RuntimeWarning:arviz")
@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_notebook_runs_as_itself(path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(public, "reproduce", reproduce)
    sizes = dict(SIZES[path.stem.partition("_")[0]])
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
            sizes["experiments"] = {name: EXPERIMENTS[name].smallest for name in chosen}
            assert {*sizes} - {"experiments"} <= {*names}, "sizes that the notebook does not have"
            names.update(sizes)
    assert replaced == 1
    if "race" in names:
        assert any(x is names["race"] for x in shown)
        assert all(x in names["race"]._repr_markdown_() for x in names["methods"])
        assert names["race"].paths._repr_png_()[0][:4] == b"\x89PNG"
    plt.close("all")


def test_trials_are_the_same_however_many_run_at_once():
    """Alone, all together, and in batches the last of which is filled up."""
    made = [in_batches(random.normal, 3, 5, batch)[0] for batch in (1, 2, 5)]
    np.testing.assert_array_equal(made[0][4], random.normal(random.split(random.key(3), 5)[4]))
    for other in made[1:]:
        np.testing.assert_array_equal(other, made[0])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("clipped-digits --rank 0", "--rank 0"),
        ("clipped-digits --steps 1", "--steps 1"),
        ("clipped-ring --rows 0", "--rows 0"),
        ("clipped-ring --size 7", "--size 7"),
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
        ("bsc-bars --trials 0", "--trials"),
        ("bsc-bars --init-active 11", "--init-active"),
        ("bsc-bars --num-data -1", "--num-data"),
        ("bsc-patches --centre 3 --surround 1", "--centre"),
    ],
)
def test_nonsense_is_refused_in_one_line(wrong, words, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["reproduce", *wrong.split(), "--json", str(out)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("clipped-baselines --columns 2", "--columns"),
        ("noisyor-structure --particles 1", "--particles"),
        ("bsc-causes --kinds ternary", "'ternary'"),
        ("noisyor-words", "--data FILE"),
        ("noisyor-words --data nowhere.csv", "nowhere.csv"),
        ("noisyor-words --data nowhere.csv --causes 0", "--causes"),
    ],
)
def test_the_script_refuses_nonsense_too(wrong, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        script.main(wrong.split())
    assert words in capsys.readouterr().err
