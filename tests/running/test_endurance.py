"""Runs that are killed, interrupted, or go astray."""

import json
import os
import random as chance
import signal
import subprocess
import sys
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
import short_runs
from hostile import refused
from short_runs import run, same

from inference import EM, DivergedError, Search
from ppl_models import bernoulli_mixture


def test_a_run_goes_on_from_its_checkpoint_to_the_numbers_of_one_without_a_break(tmp_path):
    whole = run(record=lambda p: p["mixing"])
    first = run(record=lambda p: p["mixing"], checkpoint=tmp_path, budget=0.0)
    assert len(first.losses) == 1
    second = run(25, record=lambda p: p["mixing"], checkpoint=tmp_path)
    assert len(second.losses) == 25  # fewer steps were asked for: a checkpoint has no end in it
    third = run(record=lambda p: p["mixing"], checkpoint=tmp_path)
    same(whole, third)
    np.testing.assert_array_equal(whole.history, third.history)
    again = run(record=lambda p: p["mixing"], checkpoint=tmp_path)  # nothing is left to do
    same(whole, again)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.npz", "checkpoint.lock"}


def test_more_steps_in_one_folder_give_what_as_many_give_at_once_or_say_why_not(tmp_path):
    run(40, checkpoint=tmp_path / "one start")
    same(run(80), run(80, checkpoint=tmp_path / "one start"))
    # The search before the first step is longer for a longer run, unless its length is given.
    searches = {
        "given": Search(screening=5, rounds=2, steps=5), "grows": Search(),
        "begins": Search(least_steps=60),
    }  # fmt: skip
    methods = {name: EM(bernoulli_mixture, search=search) for name, search in searches.items()}
    for name, method in methods.items():
        run(40, method=method, checkpoint=tmp_path / name)
    given = methods["given"]
    same(run(200, method=given), run(200, method=given, checkpoint=tmp_path / "given"))
    words = "its search, whose length follows the number of steps, is"
    with refused(f"{words} '3 starts, 8 steps of", "here it is '3 starts, 13 steps of"):
        run(200, method=methods["grows"], checkpoint=tmp_path / "grows")
    with refused(f"{words} 'one start', here it is '3 starts, 13 steps of"):
        run(200, method=methods["begins"], checkpoint=tmp_path / "begins")


def test_a_process_killed_at_random_moments_ends_with_the_same_numbers(tmp_path):
    answer, folder = tmp_path / "answer", tmp_path / "saved"

    def start(seed):
        return subprocess.Popen(
            [sys.executable, short_runs.__file__, answer, folder],
            env={**os.environ, "CI": "1", "PYTHONHASHSEED": str(seed)},
        )  # fmt: skip

    dice = chance.Random(0)
    steps = 0
    for kill in range(2):
        before = mtime(folder)
        process = start(kill)
        # Wait until the run itself is under way, then for as long as the dice say.
        deadline = time.monotonic() + 120
        while mtime(folder) == before:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.005)
        time.sleep(dice.uniform(0.0, 0.3))
        process.kill()
        process.wait()
        with np.load(folder / "checkpoint.npz") as saved:  # whole, whenever it was
            assert len(saved["losses"]) >= steps
            steps = len(saved["losses"])
        answer.unlink(missing_ok=True)  # it may have ended
    last = start(2)
    whole = short_runs.longer()
    assert last.wait() == 0
    assert json.loads(answer.read_text()) == whole
    assert {path.name for path in folder.iterdir()} == {"checkpoint.npz", "checkpoint.lock"}


def mtime(folder):
    path = folder / "checkpoint.npz"
    return path.stat().st_mtime_ns if path.exists() else None


def test_ctrl_c_ends_a_run_with_what_there_is(tmp_path):
    def interrupt():
        while mtime(tmp_path) is None:  # until it is under way
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # A test that runs in the background would not hear it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        result = run(10**7, checkpoint=tmp_path, checkpoint_every=0.2)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.interrupted
    assert 0 < len(result.losses) < 10**7
    assert result.reason == f"interrupted after {len(result.losses)} of 10000000 steps"
    assert np.isfinite(result.losses).all()
    with np.load(tmp_path / "checkpoint.npz") as saved:
        assert len(saved["losses"]) == len(result.losses)


def test_a_loss_that_is_no_number_names_step_and_site_and_the_good_state_is_kept(tmp_path):
    class Astray(EM):
        def update(self, state, *args, **kwargs):
            state, loss = super().update(state, *args, **kwargs)
            bad = jnp.where(state.step >= 7, jnp.nan, state.params["probs"])
            return state._replace(params={**state.params, "probs": bad}), loss

    match = r"nan at step 8: 'probs' is not finite; the last good"
    with pytest.raises(DivergedError, match=match) as caught:
        run(method=Astray(bernoulli_mixture, search=None), checkpoint=tmp_path)
    same_state = run(6, method=EM(bernoulli_mixture, search=None)).state
    np.testing.assert_array_equal(caught.value.state.params["probs"], same_state.params["probs"])
    with np.load(tmp_path / "last_good.npz") as good:
        assert all(np.isfinite(good[name]).all() for name in good.files if name != "about")
    # A last step that goes astray has no loss yet to show it.
    with pytest.raises(DivergedError, match="'probs' is not finite after step 7") as caught:
        run(7, method=Astray(bernoulli_mixture, search=None))
    assert np.isfinite(caught.value.state.params["probs"]).all()
