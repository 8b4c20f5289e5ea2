"""`latentbits choose`: what it prints, draws and refuses."""

import numpy as np
import pytest

from inference.cli import main
from inference.studies import choosing
from inference.studies.estimators import LatentTrait


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    chance = 1 / (1 + np.exp(-rng.normal(size=(91, 1)) * [1.0, 2.0, 1.5, 1.0]))
    file = tmp_path_factory.mktemp("choose") / "answers.csv"
    np.savetxt(file, rng.random(chance.shape) < chance, "%d", ",", header="a,b,c,d", comments="")
    return file


def test_the_smallest_of_equals_is_taken(data, capsys):
    figure = data.with_name("curve.svg")
    said = ["choose", "latent_trait", "--data", str(data), "--over", "num_factors=1..2"]
    assert main([*said, "--folds", "3", "--steps", "8", "--figure", str(figure)]) == 0
    lines = capsys.readouterr().out.splitlines()
    size, mean, _, total, aic, _, free = lines[1].split()
    assert lines[0].startswith("num_factors") and (size, free) == ("1", "8")
    assert lines[3].startswith("take      num_factors=1")
    assert float(aic) == pytest.approx(2 * 8 - 2 * float(total), abs=0.02)
    rows = np.loadtxt(data, delimiter=",", skiprows=1)
    held = [
        LatentTrait(random_state=0, max_steps=8).fit(rows[train]).score_samples(rows[test])
        for train, test in choosing.folds_of(len(rows), 3, 0)
    ]
    assert len(np.concatenate(held)) == 90  # each row once, but for the one that is left over
    assert float(mean) == pytest.approx(np.mean(held), abs=0.01)  # from other starts
    assert figure.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("over", "words"),
    [("num_causes=1..2", "latent_trait has no such argument"), ("num_factors=1..2", "--folds 99")],
)
def test_what_cannot_be_is_refused_before_any_work(data, capsys, over, words):
    more = ["--folds", "99"] if words.startswith("--folds") else []
    assert main(["choose", "latent_trait", "--data", str(data), "--over", over, *more]) == 2
    assert words in capsys.readouterr().err
