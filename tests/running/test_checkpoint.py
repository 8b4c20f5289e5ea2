"""A checkpoint belongs to its run: those of others, damaged ones and bad folders are refused."""

import random as chance
import resource
import subprocess
import sys
from functools import partial
from importlib.metadata import version

import jax.numpy as jnp
import numpy as np
import pytest
from hostile import refused
from jax import random
from short_runs import DATA, run, same

from inference import EM, CheckpointError
from inference.running import checkpoint
from inference.running.checkpoint import Checkpoint
from ppl_models import bernoulli_mixture
from ppl_models.data.sealed import sealed


def test_a_checkpoint_of_anything_else_is_refused_and_left_alone(tmp_path, monkeypatch):
    """What of a program is compared: test_fingerprint."""
    rows = np.tile(np.asarray(DATA), (100, 1))  # 2400 rows

    def save(method, key=1, data=rows, **settings):
        settings = {"num_components": 3, "checkpoint": tmp_path / "mixture", **settings}
        return method.run(random.key(key), 2, data, **settings)

    inside = rows.copy()
    inside[1200] = 1 - inside[1200]
    start = {"mixing": jnp.array([0.5, 0.3, 0.2]), "probs": jnp.full((3, 5), 0.4)}
    em, other = EM(bernoulli_mixture), EM(partial(bernoulli_mixture, prior_mixing=None))
    mapped = np.memmap(tmp_path / "rows", rows.dtype, "w+", shape=rows.shape)
    mapped[:] = inside

    save(em)
    before = (tmp_path / "mixture" / "checkpoint.npz").read_bytes()
    for words, attempt in {
        "program is bernoulli_mixture#": lambda: save(other),
        "data.0 is float32(2400, 5)#": lambda: save(em, data=inside),
        "data.0 is": lambda: save(em, data=mapped),
        "key is": lambda: save(em, key=2),
        "start is None, here it is dict of 2": lambda: save(em, init_params=start),
        "start is None, here it is EMState of": lambda: save(
            em, init_state=em.init(random.key(1), rows, num_components=3)
        ),
        "setting.gradient_steps is": lambda: save(EM(bernoulli_mixture, gradient_steps=3)),
        "of step 2: ask for at least": lambda: em.run(
            random.key(1), 1, rows, num_components=3, checkpoint=tmp_path / "mixture"
        ),
    }.items():
        with refused(words, str(tmp_path / "mixture")):
            attempt()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "version", lambda _: "0.0.9")
        with refused(f"version is '{version('latentbits')}', here it is '0.0.9'"):
            save(em)
    assert (tmp_path / "mixture" / "checkpoint.npz").read_bytes() == before
    np.testing.assert_array_equal(save(em).losses, save(em).losses)


def test_two_runs_do_not_share_a_folder(tmp_path):
    with (
        Checkpoint(tmp_path, {}),
        pytest.raises(CheckpointError, match="another run is saving to it"),
    ):
        run(5, checkpoint=tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c",
         "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); "
         "print('held', flush=True); time.sleep(600)", str(tmp_path / "checkpoint.lock")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match="another run is saving to it"):
        Checkpoint(tmp_path, {})
    holder.kill()  # the lock dies with its process
    holder.communicate()
    run(5, checkpoint=tmp_path)


def test_a_damaged_checkpoint_is_named_and_left_alone(tmp_path):
    run(5, checkpoint=tmp_path)
    path = tmp_path / "checkpoint.npz"
    whole = path.read_bytes()
    dice = chance.Random(0)
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        with refused(str(path), "checksum"), Checkpoint(tmp_path, {}):
            pass
    for share in (0.0, 0.3, 0.9, 0.999):
        part = whole[: int(share * len(whole))]
        path.write_bytes(part)
        with refused("checksum"):
            run(5, checkpoint=tmp_path)
        assert path.read_bytes() == part
    path.write_bytes(sealed(b"PK of another kind"))
    with refused("is no checkpoint"):
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
        with pytest.raises(CheckpointError, match=r"takes \d+ bytes.*what was saved before is"):
            run(9, checkpoint=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "checkpoint.npz").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.npz", "checkpoint.lock"}
    same(first, run(5, checkpoint=tmp_path))
