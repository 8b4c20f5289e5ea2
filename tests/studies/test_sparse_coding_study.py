"""The experiments of binary sparse coding, at small size."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from oracle import selection_scores
from tools import fast_jit

from inference.cli import main
from inference.studies.papers import sparse_coding_patches
from inference.studies.papers.sparse_coding import (
    all_bars_found,
    bars_trial,
    paper_recipe,
    selection,
)
from ppl_models.data import bars


def test_recovery_is_blind_to_order_and_scale_but_not_to_a_bar_found_twice():
    true = np.asarray(jax.jit(lambda key: bars(key, 1).weights)(random.key(0)))
    order = np.random.default_rng(1).permutation(10)
    shuffled = true[order] * np.linspace(0.5, 2.0, 10, dtype=np.float32)[:, None]
    found = fast_jit(all_bars_found)
    assert found(true, shuffled)
    twice = shuffled.copy()
    twice[3] = twice[4]
    assert not found(true, twice)
    assert not found(true, -shuffled)


def test_selection_function_is_that_of_the_paper():
    generator = np.random.default_rng(0)
    weights, data = generator.normal(size=(4, 6)), generator.normal(size=(5, 6))
    ours = selection({"weights": jnp.asarray(weights)}, jnp.asarray(data))
    theirs = [selection_scores(weights, datum) for datum in data]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_bars_command_writes_its_numbers(tmp_path):
    out = tmp_path / "bars.json"
    arguments = ["--trials", "3", "--num-data", "400", "--json", str(out)]
    assert main(["reproduce", "bsc-bars", *arguments]) == 0
    numbers = json.loads(out.read_text())
    wanted = {"trials", "recovered", "pi_h_mean", "pi_h_std", "sigma_mean", "sigma_std"}
    assert wanted | {"cpu_seconds_per_trial", "compile_seconds"} <= set(numbers)
    assert numbers["trials"] == 3
    # Three sets of 400 rows: πH is known to √(Hπ(1−π)/N)/√3 = 0.04 or so, σ to 0.02, when all bars
    # are found, and they are in all but a few of a hundred trials.
    if numbers["recovered"] == 1.0:
        assert abs(numbers["pi_h_mean"] - 2.0) < 0.2
        assert abs(numbers["sigma_mean"] - 2.0) < 0.1
    else:
        assert numbers["sigma_mean"] > 2.0  # what is not explained is noise


def test_improved_recipe_chooses_among_its_starts_by_free_energy():
    method, key = paper_recipe(1.0), random.key(3)
    trial = fast_jit(partial(bars_trial, method, 300, 3, num_steps=12))(key)
    key_data, key_fit = random.split(key)

    @fast_jit
    def last_loss(key_start):
        data = bars(key_data, 300).data
        state = method.init(key_start, data, num_causes=10)
        step = lambda state, _: method.update(state, data, num_causes=10)  # noqa: E731
        return jax.lax.scan(step, state, None, length=13)[1][-1]

    last = [float(last_loss(key_start)) for key_start in random.split(key_fit, 3)]
    assert int(trial.chosen) == int(np.argmin(last))
    assert trial.noise.shape == (3, 12)


@pytest.mark.parametrize(
    "wrong", [["--trials", "0"], ["--init-active", "11"], ["--num-data", "-1"]]
)
def test_bars_command_refuses_nonsense(wrong, tmp_path, capsys):
    out = tmp_path / "bars.json"
    assert main(["reproduce", "bsc-bars", *wrong, "--json", str(out)]) == 2
    assert not out.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_patches_command_writes_numbers_and_figure(tmp_path, monkeypatch):
    small = sparse_coding_patches.SMALL._replace(side=9, num_causes=12)
    monkeypatch.setattr(sparse_coding_patches, "SMALL", small)
    out, figure = tmp_path / "patches.json", tmp_path / "patches.png"
    arguments = ["--num-data", "300", "--steps", "3", "--json", str(out), "--figure", str(figure)]
    assert main(["reproduce", "bsc-patches", *arguments]) == 0
    numbers = json.loads(out.read_text())
    wanted = {"pi_h", "sigma", "seconds", "seconds_per_iteration", "fraction_gabor"}
    assert wanted | {"fraction_globular"} <= set(numbers)
    assert 0 < numbers["sigma"] < 1.5  # the patches have unit variance
    assert numbers["fraction_gabor"] + numbers["fraction_globular"] <= 1
    assert figure.read_bytes()[:4] == b"\x89PNG"
