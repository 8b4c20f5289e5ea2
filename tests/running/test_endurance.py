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
from contextlib import suppress
from functools import partial
from runpy import run_path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hostile import refused
from jax import random
from tools import noisy_copies

from inference import EM, CheckpointError, DivergedError, TruncatedEM
from inference.running.checkpoint import Checkpoint, origin
from inference.running.fingerprint import fingerprint
from inference.running.restarts import Restarts
from ppl_models import bernoulli_mixture, binary_sparse_coding
from ppl_models.data.sealed import sealed

DATA = jnp.asarray(noisy_copies(0, 8, 5), jnp.float32)


def run(steps=40, data=DATA, method=None, **settings):
    method = method or EM(bernoulli_mixture, search=None)
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
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.npz", "checkpoint.lock"}


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
            structure=Structure.SHARED, search=Search(num_lineages=2, rounds=0),
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


def other_program(data=None, *, num_components, concentration=2.0):
    mixing = numpyro.sample("mixing", dist.Dirichlet(jnp.full(num_components, concentration)))
    with numpyro.plate("components", num_components):
        probs = numpyro.sample("probs", dist.Uniform(0, 1).expand((5,)).to_event(1))
    with numpyro.plate("data", len(data)):
        component = numpyro.sample("component", dist.Categorical(mixing))
        numpyro.sample("seen", dist.Bernoulli(probs[component]).to_event(1), obs=data)


def edited_program(data=None, *, num_components, concentration=2.0):
    mixing = numpyro.sample("mixing", dist.Dirichlet(jnp.full(num_components, concentration)))
    with numpyro.plate("components", num_components):
        probs = numpyro.sample("probs", dist.Uniform(0, 1).expand((5,)).to_event(1))
    with numpyro.plate("data", len(data)):
        component = numpyro.sample("component", dist.Categorical(mixing))
        numpyro.sample("seen", dist.Bernoulli(probs[component] ** 2).to_event(1), obs=data)


edited_program.__qualname__ = other_program.__qualname__


def test_a_checkpoint_of_anything_else_is_refused_and_left_alone(tmp_path):
    rows = np.tile(np.asarray(DATA), (100, 1))  # 2400 rows

    def save(folder, method, key=1, data=rows, **settings):
        settings = {"num_components": 3, "checkpoint": tmp_path / folder, **settings}
        return method.run(random.key(key), 2, data, **settings)

    inside = rows.copy()
    inside[1200] = 1 - inside[1200]
    start = {"mixing": jnp.array([0.5, 0.3, 0.2]), "probs": jnp.full((3, 5), 0.4)}
    other, em = EM(other_program), EM(bernoulli_mixture)
    mapped = np.memmap(tmp_path / "rows", rows.dtype, "w+", shape=rows.shape)
    mapped[:] = inside
    prior = partial(other_program, concentration=3.0)

    save("mixture", em)
    before = (tmp_path / "mixture" / "checkpoint.npz").read_bytes()
    for words, attempt in {
        "model is bernoulli_mixture, here it is": lambda: save("mixture", other),
        "data is float32(2400, 5)#": lambda: save("mixture", em, data=inside),
        "data is": lambda: save("mixture", em, data=mapped),
        "key is": lambda: save("mixture", em, key=2),
        "start is None, here it is dict#": lambda: save("mixture", em, init_params=start),
        "start is None, here it is EMState#": lambda: save(
            "mixture", em, init_state=em.init(random.key(1), rows, num_components=3)
        ),
        "setting gradient_steps is": lambda: save(
            "mixture", EM(bernoulli_mixture, gradient_steps=3)
        ),
        "of step 2: ask for at least": lambda: em.run(
            random.key(1), 1, rows, num_components=3, checkpoint=tmp_path / "mixture"
        ),
    }.items():
        with refused(words, str(tmp_path / "mixture")):
            attempt()
    save("other", other)
    for changed in (edited_program, prior):
        with refused("program's code is"):
            save("other", EM(changed))
    assert (tmp_path / "mixture" / "checkpoint.npz").read_bytes() == before
    np.testing.assert_array_equal(save("mixture", em).losses, save("mixture", em).losses)


def test_settings_that_are_no_numbers_belong_to_a_run():
    def made_of(**settings):
        method = TruncatedEM(binary_sparse_coding, **settings)
        return origin(method, (np.zeros((2, 3)),), {}, random.key(0), None, None)

    one, two = ({"weights": np.array([0.1, x])} for x in (0.1, 0.2))
    assert made_of(parameter_noise=one) == made_of(parameter_noise={**one})
    assert made_of(parameter_noise=one) != made_of(parameter_noise=two)
    assert made_of(prior=True) != made_of(prior=False)
    nested = [origin(Restarts(EM(bernoulli_mixture, gradient_steps=n), 2), (), {}, None, None, None)
              for n in (3, 4)]  # fmt: skip
    assert nested[0] != nested[1]
    priors = [partial(binary_sparse_coding, prior_weights=dist.Normal(0.0, s)) for s in (1.0, 2.0)]
    assert fingerprint(priors[0]) != fingerprint(priors[1])
    assert fingerprint(priors[0]) == fingerprint(
        partial(binary_sparse_coding, prior_weights=dist.Normal(0.0, 1.0))
    )


def test_a_fingerprint_is_the_same_in_the_next_process_and_follows_helpers(tmp_path):
    text = """
        import jax.numpy as jnp
        SCALE = {scale}
        def helper(x):
            return x {sign} 1
        def program(data, words=frozenset(("a", "b", "c"))):
            "{doc}"
            return [helper(data) for _ in range(2) if SCALE and "a" in {{"a", "b"}}]
    """
    script = """
        import sys
        from inference.running.fingerprint import fingerprint

        def prints(texts):
            for text in texts:
                space = {"__name__": "own"}
                exec(compile(text, "own.py", "exec"), space)
                yield fingerprint(space["program"])

        if __name__ == "__main__":
            print(*prints(sys.argv[1:]))
    """
    (tmp_path / "own.py").write_text(textwrap.dedent(script))
    first = {"scale": 1, "sign": "+", "doc": "One."}
    changes = [{}, {"doc": "Two."}, {"scale": 2}, {"sign": "-"}]
    texts = [textwrap.dedent(text).format(**{**first, **change}) for change in changes]
    here = list(run_path(str(tmp_path / "own.py"))["prints"](texts))
    there = subprocess.run(
        [sys.executable, str(tmp_path / "own.py"), *texts], capture_output=True, text=True,
        check=True, env={**os.environ, "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    assert there.stdout.split() == here
    same, documented, scaled, other = here
    assert same == documented and len({same, scaled, other}) == 3


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
        with pytest.raises(CheckpointError, match=r"cannot save to .*what was saved before is"):
            run(9, checkpoint=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "checkpoint.npz").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.npz", "checkpoint.lock"}
    same(first, run(5, checkpoint=tmp_path))
