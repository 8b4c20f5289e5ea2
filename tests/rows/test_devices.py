"""Rows dealt out to several devices, in one process and in two: the numbers of one device."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import random

from inference import EM, GibbsEM, TruncatedEM
from ppl_models import binary_sparse_coding, noisy_or_network
from ppl_models.data import bars

SCRIPT = """
    import json, sys
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import random
    from numpyro.handlers import condition
    from numpyro.infer import MCMC
    from inference import (
        EM, BoundEM, ContrastiveDivergence, Cut, ExactGradient, LatentGibbs, MomentInversion,
        Persistent, ProjectionPursuit, TruncatedEM)
    from ppl_models import (
        binary_sparse_coding, clipped_gaussian, combination_machine, latent_trait, noisy_or_network)
    from ppl_models.data import bars, prototypes

    pixels = np.asarray(bars(random.key(1), 53, size=2).data)
    bits = np.asarray(prototypes(random.key(0), copies=9, num_features=5, flip=0.2).data)

    def worst(one, other):  # by site, of its largest entry
        off = [abs(np.asarray(one[x]) - np.asarray(other[x])).max() for x in one]
        return float(max(d / abs(np.asarray(one[x])).max() for d, x in zip(off, one)))

    mesh = jax.make_mesh((8,), ("data",))
    folder = sys.argv[1]

    def mapped(rows):
        np.save(f"{folder}/{rows.shape[1]}.npy", rows)
        return np.load(f"{folder}/{rows.shape[1]}.npy", mmap_mode="r")

    cases = {
        "EM": (EM(binary_sparse_coding, chunk_size=3), pixels, {"num_causes": 3}),
        "EM on disk": (None, mapped(pixels), {"num_causes": 3}),
        "TruncatedEM": (TruncatedEM(binary_sparse_coding, persistent=Persistent(4, 2), max_active=1,
                                    cut=Cut(0, 1)), pixels, {"num_causes": 3}),
        "BoundEM": (BoundEM(latent_trait), bits, {"num_factors": 1}),
        "ExactGradient": (ExactGradient(combination_machine), bits, {"num_causes": 2}),
        "MomentInversion": (MomentInversion(clipped_gaussian, rank=1), bits, {}),
        "ContrastiveDivergence": (ContrastiveDivergence(combination_machine), bits,
                                  {"num_causes": 2}),
        "ProjectionPursuit": (ProjectionPursuit(combination_machine, num_starts=2), mapped(bits),
                              {"num_causes": 2}),
    }
    out = {}
    for name, (method, data, settings) in cases.items():
        if method is not None:  # else those of the case before
            one, before = method.run(random.key(0), 3, np.asarray(data), **settings), method
        method = before
        many = method.run(random.key(0), 3, data, mesh=mesh, **settings)
        memory = [abs(np.asarray(a, float) - np.asarray(b, float)).max() for a, b in zip(
            jax.tree.leaves(getattr(one.state, "memory", None)),
            jax.tree.leaves(getattr(many.state, "memory", None)), strict=True)]
        out[name] = [worst(one.params, many.params),
                     float(abs(many.losses / one.losses - 1).max()), float(max(memory, default=0))]

    params = {"leak_0": jnp.full(3, 0.1), "leak_1": jnp.full(2, 0.5),
              "weights_1": jnp.array([[2.0, 2.0, 0.0], [0.0, 2.0, 2.0]])}
    mcmc = MCMC(LatentGibbs(condition(noisy_or_network, data=params)), num_warmup=5, num_samples=10,
                num_chains=2, chain_method="parallel", progress_bar=False)
    mcmc.run(random.key(0), jnp.array([[1, 1, 0], [0, 0, 0]]), layers=(2,))
    chains = mcmc.get_samples(group_by_chain=True)["layer_1"]
    assert chains.shape == (2, 10, 2, 2) and (chains[0] != chains[1]).any()
    print(json.dumps(out))
"""


def start(devices, *command):
    environment = {
        **os.environ,
        "JAX_NUM_CPU_DEVICES": f"{devices}",
        "JAX_PLATFORMS": "cpu",
        "CI": "1",
    }
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def answer(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def test_eight_devices_give_the_numbers_of_one(tmp_path):
    """53 and 27 rows do not divide by eight: some devices hold rows of others, not counted. Chains
    of `LatentGibbs` run on devices of their own."""
    runs = answer(start(8, "-c", textwrap.dedent(SCRIPT), tmp_path))
    for name, (params, losses, memory) in runs.items():
        assert losses < 1e-5, name
        assert params < 1e-5, name
        assert memory < 1e-5, name


def test_two_processes_give_the_numbers_of_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # One is in a hurry, the other finds every block slow: they have to go in step all the same.
    script = """
        import sys
        from inference.running import loop
        from two_processes import main
        loop.BLOCK_SECONDS = (60.0, 0.0)[int(sys.argv[1])]
        main(*sys.argv[1:])
    """
    folder = Path(__file__).parents[1] / "support"
    script = f"import sys; sys.path.append({str(folder)!r})\n{textwrap.dedent(script)}"
    processes = [start(1, "-c", script, rank, address) for rank in range(2)]
    em = TruncatedEM(binary_sparse_coding, num_candidates=3)
    one = em.run(random.key(0), 8, bars(random.key(1), 53, size=2).data, num_causes=3)
    for process in processes:
        run = answer(process)
        assert (run["devices"], run["here"]) == (2, 1)
        np.testing.assert_allclose(run["losses"], one.losses, rtol=1e-5)
        scale = np.abs(one.params["weights"]).max()
        np.testing.assert_allclose(run["weights"], one.params["weights"], atol=1e-5 * scale)


def test_what_cannot_be_dealt_out_says_so():
    mesh = jax.make_mesh((1,), ("data",))
    rows = np.eye(4)
    with pytest.raises(ValueError, match="GibbsEM takes no mesh: its weights change"):
        GibbsEM(noisy_or_network).run(random.key(0), 1, rows, layers=(2,), mesh=mesh)
    two = jax.make_mesh((1, 1), ("data", "model"))
    with pytest.raises(ValueError, match="one axis, found"):
        EM(binary_sparse_coding).run(random.key(0), 1, rows, num_causes=2, mesh=two)
