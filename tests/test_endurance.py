"""Runs that are killed, interrupted, or go astray, and folders that cannot be written to."""

import json
import os
import random as chance
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from inference import EM, CheckpointError, DivergedError
from ppl_models import bernoulli_mixture, binary_sparse_coding
from ppl_models.data import bars, prototypes

DATA = prototypes(random.key(0), copies=8, num_features=5, flip=0.2).data


def run(steps=40, data=DATA, method=None, **settings):
    method = method or EM(bernoulli_mixture)
    return method.run(random.key(1), steps, data, num_components=3, **settings)


def same(one, other):
    np.testing.assert_array_equal(one.losses, other.losses)
    for site, value in one.params.items():
        np.testing.assert_array_equal(value, other.params[site])


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
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]


SCRIPT = """
    import json, sys
    import numpy as np
    from jax import random
    from inference import TruncatedEM
    from ppl_models import binary_sparse_coding
    from ppl_models.data import bars

    folder = None if sys.argv[1] == "-" else sys.argv[1]
    data = bars(random.key(1), 100, size=3).data
    # The state holds a random key, and something of each row.
    em = TruncatedEM(binary_sparse_coding, parameter_noise={"weights": 0.01})
    print("ready", flush=True)
    result = em.run(
        random.key(0), 3000, data, num_causes=6, checkpoint=folder, checkpoint_every=0.0
    )
    params = {name: np.asarray(value).tolist() for name, value in result.params.items()}
    print(json.dumps([params, result.losses.tolist()]), flush=True)
"""


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "CI": "1"},
    )  # fmt: skip


def test_a_process_killed_at_random_moments_ends_with_the_same_numbers(tmp_path):
    whole = start("-")
    dice = chance.Random(0)
    kills = steps = 0
    while True:
        process = start(tmp_path)
        assert process.stdout.readline() == "ready\n"
        # Wait until the run itself is under way, then for as long as the dice say.
        deadline = time.monotonic() + 120
        before = mtime(tmp_path)
        while mtime(tmp_path) == before and process.poll() is None and kills < 5:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        if kills < 5 and process.poll() is None:
            time.sleep(dice.uniform(0.0, 0.3))
            process.kill()
            kills += process.wait() == -signal.SIGKILL
            process.stdout.close()
            with np.load(tmp_path / "checkpoint.npz") as saved:  # whole, whenever it was
                assert len(saved["leaf_0"]) >= steps
                steps = len(saved["leaf_0"])
            continue
        out, _ = process.communicate(timeout=120)
        break
    expected, _ = whole.communicate(timeout=120)
    assert kills >= 2
    params, losses = json.loads(expected.splitlines()[-1])
    again, losses_again = json.loads(out.splitlines()[-1])
    assert losses == losses_again
    assert params == again


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
        assert len(saved["leaf_0"]) == len(result.losses)


def test_a_loss_that_is_no_number_names_step_and_site_and_the_good_state_is_kept(tmp_path):
    class Astray(EM):
        def update(self, state, *args, **kwargs):
            state, loss = super().update(state, *args, **kwargs)
            bad = jnp.where(state.step >= 7, jnp.nan, state.params["probs"])
            return state._replace(params={**state.params, "probs": bad}), loss

    with pytest.raises(DivergedError, match=r"nan at step 8: 'probs' is not finite; the last good"):
        run(method=Astray(bernoulli_mixture), checkpoint=tmp_path)
    with np.load(tmp_path / "last_good.npz") as good:
        assert all(np.isfinite(good[name]).all() for name in good.files if name != "about")
    # A last step that goes astray has no loss yet to show it.
    with pytest.raises(DivergedError, match="'probs' is not finite after step 7") as caught:
        run(7, method=Astray(bernoulli_mixture))
    assert np.isfinite(caught.value.state.params["probs"]).all()


def test_a_checkpoint_of_anything_else_is_refused_and_left_alone(tmp_path):
    run(5, checkpoint=tmp_path)
    before = (tmp_path / "checkpoint.npz").read_bytes()
    other = bars(random.key(1), 24, size=2).data
    with pytest.raises(CheckpointError, match=r"its model is .*bernoulli_mixture, here it is"):
        EM(binary_sparse_coding).run(random.key(0), 5, other, num_causes=3, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="its data is"):
        run(5, data=1 - DATA, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="its settings is"):
        run(5, method=EM(bernoulli_mixture, gradient_steps=3), checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="is of step 5: ask for at least as many"):
        run(3, checkpoint=tmp_path)
    assert (tmp_path / "checkpoint.npz").read_bytes() == before


def test_a_truncated_checkpoint_is_named_and_left_alone(tmp_path):
    run(5, checkpoint=tmp_path)
    path = tmp_path / "checkpoint.npz"
    whole = path.read_bytes()
    for share in (0.0, 0.3, 0.9, 0.999):
        part = whole[: int(share * len(whole))]
        path.write_bytes(part)
        with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
            run(5, checkpoint=tmp_path)
        assert path.read_bytes() == part
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(len(whole) - middle))
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        run(5, checkpoint=tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        with pytest.raises(CheckpointError, match="cannot save to"):
            run(5, checkpoint=folder)


def test_a_full_disk_keeps_what_was_saved_before(tmp_path):
    first = run(5, checkpoint=tmp_path)
    before = (tmp_path / "checkpoint.npz").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # no file may grow beyond this
    try:
        with pytest.raises(CheckpointError, match=r"cannot save to .*what was saved before is"):
            run(9, checkpoint=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "checkpoint.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]
    same(first, run(5, checkpoint=tmp_path))
