"""Runs that are killed, interrupted, or go astray."""

import json
import os
import random as chance
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import jax.numpy as jnp
import numpy as np
import pytest
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


SCRIPT = """
    import json, os, sys, warnings
    import numpy as np
    from jax import random
    from inference import Search, TruncatedEM
    from inference.reading.local import Structure
    from ppl_models import binary_sparse_coding

    def run(folder, answer):
        data = np.random.default_rng(1).normal(size=(100, 9)).astype(np.float32)
        # The state holds a random key, and something of each row, of two starts.
        em = TruncatedEM(
            binary_sparse_coding, parameter_noise={"weights": 0.01}, num_candidates=3,
            structure=Structure.SHARED, search=Search(num_lineages=2, screening=0, rounds=0),
        )
        saving = {"checkpoint": folder, "checkpoint_every": 0.0} if folder else {}
        result = em.run(random.key(0), 3000, data, num_causes=6, **saving)
        params = {name: np.asarray(value).tolist() for name, value in result.params.items()}
        with open(answer, "w") as file:
            json.dump([params, result.losses.tolist()], file)

    # A process for each line. They share the imports, which take longer than the run; JAX has done
    # nothing yet when they part.
    warnings.filterwarnings("ignore", "os.fork")
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            run(*json.loads(line))
            os._exit(0)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


def test_a_process_killed_at_random_moments_ends_with_the_same_numbers(tmp_path):
    nursery = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "CI": "1"},
    )  # fmt: skip

    def start(folder, answer):
        nursery.stdin.write(json.dumps([folder and str(folder), str(answer)]) + "\n")
        return int(nursery.stdout.readline())

    def status():
        return int(nursery.stdout.readline())

    whole, again, folder = tmp_path / "whole", tmp_path / "again", tmp_path / "saved"
    start(None, whole)
    assert status() == 0
    dice = chance.Random(0)
    kills = steps = 0
    while kills < 2 and not again.exists():
        before = mtime(folder)
        process = start(folder, again)
        # Wait until the run itself is under way, then for as long as the dice say.
        deadline = time.monotonic() + 120
        while mtime(folder) == before:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(dice.uniform(0.0, 0.3))
        with suppress(ProcessLookupError):  # it may have ended
            os.kill(process, signal.SIGKILL)
        kills += status() == -signal.SIGKILL
        with np.load(folder / "checkpoint.npz") as saved:  # whole, whenever it was
            assert len(saved["losses"]) >= steps
            steps = len(saved["losses"])
    assert kills >= 2
    if not again.exists():
        start(folder, again)
        assert status() == 0
    nursery.communicate()
    params, losses = json.loads(whole.read_text())
    params_again, losses_again = json.loads(again.read_text())
    assert losses == losses_again
    assert params == params_again


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

    with pytest.raises(DivergedError, match=r"nan at step 8: 'probs' is not finite; the last good"):
        run(method=Astray(bernoulli_mixture, search=None), checkpoint=tmp_path)
    with np.load(tmp_path / "last_good.npz") as good:
        assert all(np.isfinite(good[name]).all() for name in good.files if name != "about")
    # A last step that goes astray has no loss yet to show it.
    with pytest.raises(DivergedError, match="'probs' is not finite after step 7") as caught:
        run(7, method=Astray(bernoulli_mixture, search=None))
    assert np.isfinite(caught.value.state.params["probs"]).all()
