"""A checkpoint belongs to its run: those of others, damaged ones and bad folders are refused."""

import os
import random as chance
import resource
import subprocess
import sys
import textwrap
from functools import partial
from runpy import run_path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hostile import refused
from jax import random
from short_runs import DATA, run, same

from inference import EM, CheckpointError, TruncatedEM
from inference.running.checkpoint import Checkpoint, origin
from inference.running.fingerprint import fingerprint
from inference.running.restarts import Restarts
from ppl_models import bernoulli_mixture, binary_sparse_coding
from ppl_models.data.sealed import sealed


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
        with pytest.raises(CheckpointError, match=r"takes \d+ bytes.*what was saved before is"):
            run(9, checkpoint=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "checkpoint.npz").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.npz", "checkpoint.lock"}
    same(first, run(5, checkpoint=tmp_path))
