"""Rows that stay on disk: the same numbers, in memory that does not grow with the table."""

import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from small_programs import CASES as PROGRAMS
from tools import noisy_bars, noisy_copies

from inference import (
    EM,
    BoundEM,
    MomentInversion,
    StepwiseEM,
)
from inference.rows import disk
from inference.rows.chunks import over_rows
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    clipped_gaussian,
    latent_trait,
)
from ppl_models.data import InputError, on_disk

PIXELS = noisy_bars(1, 53)
BITS = noisy_copies(0, 18, 6)


def mapped(folder, array, name="rows"):
    path = Path(folder) / f"{name}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def test_a_mask_may_be_on_disk_too(tmp_path):
    mask = np.random.default_rng(0).uniform(size=BITS.shape) < 0.8
    method, data = EM(bernoulli_mixture, chunk_size=20), np.where(mask, BITS, 0)
    stored = method.run(
        random.key(2), 3, mapped(tmp_path, data), num_components=2,
        mask=mapped(tmp_path, mask, "mask"),
    )  # fmt: skip
    held = method.run(random.key(2), 3, data, num_components=2, mask=mask)
    np.testing.assert_allclose(stored.params["probs"], held.params["probs"], rtol=1e-5)


def test_a_value_outside_the_support_is_named_by_its_row_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "HOST_CELLS", 1 << 17)  # looked at in two pieces
    rows = np.zeros((70_000, 2), np.uint8)
    rows[::2] = 1
    rows[69_998, 1] = 2
    stored = mapped(tmp_path, rows)
    with pytest.raises(ValueError, match=r"given 2 at index \(69998, 1\)"):
        EM(bernoulli_mixture).run(random.key(0), 1, stored, num_components=2)
    with pytest.raises(ValueError, match="row 69998, column 1 holds 2"):
        BoundEM(latent_trait).run(random.key(0), 1, stored)
    with pytest.raises(ValueError, match="2 in row 69998, column 1"):
        MomentInversion(clipped_gaussian, rank=1).run(random.key(0), 1, stored)


MEMORY = """
    import sys, threading, time
    import numpy as np
    from jax import random
    from inference import EM
    from ppl_models import bernoulli_mixture

    def anonymous():  # what the process holds itself, without the pages of files
        line = next(x for x in open("/proc/self/status") if x.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    peak = 0.0
    def watch():
        global peak
        while True:
            peak = max(peak, anonymous())
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    for file in sys.argv[1:]:
        rows = np.load(file, mmap_mode="r")
        EM(bernoulli_mixture, chunk_size=4096).run(random.key(0), 1, rows, num_components=3)
        print(peak)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own figures")
def test_memory_is_that_of_a_chunk_whatever_the_number_of_rows(tmp_path):
    files = [tmp_path / f"{num_data}.npy" for num_data in (100_000, 1_600_000)]
    for file in files:
        np.lib.format.open_memmap(file, "w+", np.uint8, (int(file.stem), 48))  # zeros: all holes
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), *map(str, files)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    few, many = map(float, found.stdout.split())
    # MiB, the smaller file first: what the larger adds to the peak. It has 69 more, 275 as
    # float32, and ten bytes held of each row would be 14.
    assert many - few < 30


def test_ten_million_rows_in_float32_lose_no_digits(tmp_path):
    """One step of EM, at two chunk sizes, against NumPy in float64 with each kind of row once."""
    rows = np.random.default_rng(0).uniform(size=(10_000_000, 1)) < 0.41
    stored = mapped(tmp_path, rows.astype(np.uint8))
    params = {"mixing": np.array([0.4, 0.6]), "probs": np.array([[0.7], [0.2]])}
    kinds = np.array([[0], [1]])
    counts = np.bincount(rows[:, 0], minlength=2)
    p = params["probs"][:, None]
    joint = params["mixing"][:, None] * np.where(kinds, p, 1 - p).prod(-1)  # (2, kinds)
    loss = -counts @ np.log(joint.sum(0))
    heavy = counts * joint / joint.sum(0)
    probs = heavy @ kinds / heavy.sum(1, keepdims=True)
    everything = np.ones(rows.shape, bool)  # sums of cells in place of a count of rows
    for size, mask in ((99_991, None), (400_000, everything)):
        em = EM(bernoulli_mixture, chunk_size=size)
        fitted = em.run(random.key(0), 1, stored, num_components=2, init_params=params, mask=mask)
        np.testing.assert_allclose(fitted.losses[0], loss, rtol=3e-7)
        np.testing.assert_allclose(fitted.params["probs"], probs, rtol=5e-7)
        np.testing.assert_allclose(fitted.params["mixing"], heavy.sum(1) / len(rows), rtol=5e-7)


def test_products_over_rows_with_ones_under_vmap():
    """A case that jaxlib 0.10 compiles to something else, if it is let."""
    left = np.random.default_rng(0).uniform(size=(3, 400, 5)).astype(np.float32)
    product = jax.jit(jax.vmap(lambda x: over_rows(x, jnp.ones((400, 64)))))(left)
    wanted = np.broadcast_to(left.astype(float).sum(1)[..., None], (3, 5, 64))
    np.testing.assert_allclose(product, wanted, rtol=1e-6)


def test_stepwise_em_on_all_rows_that_forgets_is_full_em():
    start = EM(binary_sparse_coding).init(random.key(1), PIXELS, num_causes=3).params
    settings = {"num_causes": 3, "init_params": start}
    full = EM(binary_sparse_coding).run(random.key(0), 5, PIXELS, **settings)
    step = StepwiseEM(binary_sparse_coding, batch_size=53, power=0)
    again = step.run(random.key(0), 5, PIXELS, **settings)
    np.testing.assert_allclose(again.losses, full.losses, rtol=1e-5)
    np.testing.assert_allclose(again.params["weights"], full.params["weights"], atol=1e-4)


def test_stepwise_em_comes_to_rest_where_full_em_does():
    data = noisy_copies(0, 400, 8)
    em = EM(bernoulli_mixture)
    settings = {"num_components": 3}
    start = em.init(random.key(0), data, **settings).params
    full = em.run(random.key(0), 200, data, tolerance=1e-8, init_params=start, **settings)
    assert "1e-08" in full.reason and 2 <= len(full.losses) < 200
    assert abs(full.losses[-1] - full.losses[-2]) <= 1e-8 * abs(full.losses[-1])
    best = em.posterior(full.params, data, **settings).evidence.mean()
    stepwise = StepwiseEM(bernoulli_mixture, batch_size=60, power=0.7)
    gaps = []
    for steps in (100, 4000):
        fitted = stepwise.run(random.key(1), steps, data, init_params=start, **settings)
        gaps.append(best - em.posterior(fitted.params, data, **settings).evidence.mean())
    assert gaps[1] < 0.2 * gaps[0]  # in theory as steps**-0.7: by a factor of 13
    assert gaps[1] < 1e-3


def test_stepwise_em_says_what_it_cannot_do():
    case = PROGRAMS["two_sites"]
    (data,), kwargs = case.arguments
    with pytest.raises(ValueError, match="not affine in the datum"):
        StepwiseEM(case.model).run(random.key(0), 1, data, init_params=case.typed(), **kwargs)
    with pytest.raises(ValueError, match=r"power must be above 0\.5"):
        StepwiseEM(bernoulli_mixture, power=0.3)


def test_a_parquet_file_and_an_iterator_become_a_table_on_disk(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(BITS, columns=list("abcdef")).replace({"b": {0: "no", 1: "yes"}})
    frame["c"] = 2.0 * frame["c"] - 1
    frame.loc[7, "c"] = np.nan
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=10)
    seen = np.ones(BITS.shape, bool)
    seen[7, 2] = False
    table = on_disk(tmp_path / "rows.parquet", folder=tmp_path)
    assert table.columns == tuple("abcdef")
    np.testing.assert_array_equal(table.mask, seen)
    np.testing.assert_array_equal(table.values, np.where(seen, BITS, 0))
    kept = table.values[3:]
    del table
    np.testing.assert_array_equal(kept, np.where(seen, BITS, 0)[3:])  # the file is still there
    del kept
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    chunked = on_disk(BITS[i : i + 7] for i in range(0, len(BITS), 7))
    assert chunked.mask is None
    np.testing.assert_array_equal(chunked.values, BITS)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "has no rows"),
        ([np.zeros((3, 2)), np.ones((3, 3))], "row 4: 3 columns, after rows of 2"),
        ([np.zeros((3, 2)), -np.ones((3, 2))], "row 4, column 'x1': is -1/\\+1 from here on"),
        ([np.zeros((3, 2)), np.full((1, 2), 3)], "row 4, column 'x1': found 3, wanted 0/1"),
        ([np.zeros(3)], r"row 1: has shape \(3,\)"),
    ],
)
def test_chunks_that_do_not_fit_are_named_and_nothing_is_left(tmp_path, chunks, message):
    with pytest.raises(InputError, match=message):
        on_disk(iter(chunks), folder=tmp_path)
    assert not list(tmp_path.iterdir())
