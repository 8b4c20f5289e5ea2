"""Comparisons that go wrong: workers that end, a user who stops, no time, bad options."""

import multiprocessing
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jax import random

import inference.baselines.samplers as samplers
import inference.comparison.contenders as contending
from inference.baselines.pacing import BudgetError
from inference.cli import main
from inference.comparison.compare import begin, compare, plan
from inference.comparison.contenders import Contender, contenders
from inference.comparison.files import load_comparison
from inference.comparison.side_by_side import Workers
from inference.files.cards import example
from inference.files.output import as_json
from inference.methods.gibbs.flips import Rules
from inference.reading.anatomy import inspect
from ppl_models import bernoulli_product, binary_sparse_coding, latent_trait


def test_a_missing_file_of_a_failed_method_says_what_became_of_it(tmp_path, capsys):
    manifest = {"methods": {
        "NUTS": {"reason": "failed after 20 s: no draw was made"},
        "SVI flow": {"kind": "variational", "reason": "all steps done"},
        "EM": {"kind": "point", "reason": "all steps done"},
    }}  # fmt: skip
    (tmp_path / "manifest.json").write_bytes(as_json(manifest))
    for name in ("EM", "SVI_flow"):
        (tmp_path / f"{name}.nc").touch()
    files = [str(tmp_path / "NUTS.nc"), str(tmp_path / "SVI_flow.nc")]
    assert main(["rank", *files]) == 2
    said = capsys.readouterr().err
    assert "NUTS has no result (failed after 20 s: no draw was made); draws are in SVI_flow" in said
    assert main(["rank", str(tmp_path / "Nuts.nc"), files[1]]) == 2
    assert "it took no part" in capsys.readouterr().err
    changed = (tmp_path / "manifest.json").read_text().replace("20 s", "30 s")
    (tmp_path / "manifest.json").write_text(changed)
    assert main(["rank", *files]) == 2
    assert "manifest.json: does not match its checksum" in capsys.readouterr().err


def test_ctrl_c_leaves_what_is_finished(monkeypatch, tmp_path, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    real = contenders

    def some(anatomy):
        every = real(anatomy)[0]
        return {"MAP": every["MAP"], "stopped": Contender("stopped", True, "point", stopped)}, {}

    monkeypatch.setattr(contending, "contenders", some)
    out = tmp_path / "out"
    assert (
        main(
            ["compare", "bernoulli_product", "--example", "small", "--jobs", "1", "--out", str(out)]
        )
        == 130
    )
    assert "MAP: the best score" in capsys.readouterr().out
    assert load_comparison(out / "result.nc").model == "bernoulli_product"
    assert "was interrupted" in (out / "report.html").read_text()
    assert load_comparison(out / "result.nc").rows["MAP"]["best"] and (out / "MAP.nc").is_file()


def test_side_by_side_is_as_in_turn_and_ends_when_nobody_listens():
    """In another process, from the same key, also before its turn: the same numbers. Then it is at
    work for an hour."""
    data = example("bernoulli_product", which="small").values
    alone, kept = compare(bernoulli_product, data, ["MAP"], replicate=1), {}
    pool = Workers(2)
    try:
        begin(pool, plan(bernoulli_product, data, ["MAP"], replicate=1))
        early = pool.begun[1, "MAP"]
        beside = compare(bernoulli_product, data, ["MAP", "EM"], keep=kept, replicate=1, pool=pool)
        assert early.done() and not pool.begun
        assert beside.about["likelihood"] == "the program itself" and list(kept) == ["MAP"]
        assert beside.rows["EM"]["status"] == "does not apply"
        np.testing.assert_allclose(beside.held_out["MAP"], alone.held_out["MAP"], rtol=1e-5)
        pool.begin("at once", abs, 1)
        pool.begin("never", time.sleep, 3600)
        pool.begin("nor this", time.sleep, 3600)  # in a process that was started later
        with pytest.raises(TimeoutError):
            for _ in pool.results(["at once", "never"]):
                raise TimeoutError
    finally:
        pool.close()
    for _ in range(100):
        if not multiprocessing.active_children():
            break
        time.sleep(0.1)
    assert not multiprocessing.active_children()


WAITS = """
import multiprocessing, time
from inference.comparison.side_by_side import _set_up

def work(places, busy):
    _set_up(places, {})
    busy.set()
    time.sleep(3600)

context = multiprocessing.get_context("fork")
places, busy = context.SimpleQueue(), context.Event()
places.put([])
worker = context.Process(target=work, args=(places, busy))
worker.start()
busy.wait()
print(worker.pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks up a process in /proc")
def test_a_worker_ends_with_whoever_waits_for_it():
    waits = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert waits.stdout is not None
    worker = Path(f"/proc/{waits.stdout.readline().strip()}/stat")
    assert worker.is_file()
    waits.kill()
    waits.wait()
    waits.stdout.close()
    for _ in range(100):
        try:
            if ") Z " in worker.read_text():  # ended, and nobody asked how
                return
        except OSError:
            return
        time.sleep(0.1)
    pytest.fail("the worker went on")


def test_what_is_wrong_is_said_before_any_work(tmp_path, capsys):
    for arguments, words in (
        (["latent_trait", "--limit", "0"], "--limit 0"),
        (["latent_trait", "--reference", "0"], "--reference 0"),
        (["latent_trait", "--jobs", "0"], "--jobs 0"),
        (["latent_trait", "--replicates", "0"], "--replicates 0"),
        (["latent_trait", "--example", "large"], "--example large: latent_trait has paper, small"),
        (["latent_trait", "--memory", "-1"], "--memory -1"),
        (["no_such_model"], "no program 'no_such_model'"),
        (["latent_trait", "--methods", "NUTZ"], "no method 'NUTZ'"),
        (["latent_trait", "--out", str(tmp_path / "a" / "b")], "there is no folder"),
    ):
        assert main(["compare", "--out", str(tmp_path / "out"), *arguments]) == 2
        assert words in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_steps_that_the_budget_has_no_room_for_are_refused_before_the_first(monkeypatch):
    """A step on two of 32 rows takes 0.1 s: one from each of two starts 3.2 s, four 12.8."""

    slow = SimpleNamespace(
        init=lambda *args, **_: args[1].sum(), update=lambda *args, **_: (args[0], args[0])
    )  # fmt: skip
    data = np.zeros((32, 4), np.float32)
    sizes = {"num_factors": 1}
    anatomy = inspect(latent_trait, (data,), sizes)
    monkeypatch.setattr(contending, "MANY_CELLS", 1)
    for budget in (13.0, 12.0):
        times = iter([0.0, 0.1])
        monkeypatch.setattr(contending.clock, "seconds", lambda: next(times))  # noqa: B023
        words = "one step from each of 2 starts takes about 3.2 s, and the budget of 12 s has no"
        wanted = nullcontext() if budget > 12.8 else pytest.raises(BudgetError, match=words)
        with wanted:
            contending.check_room(slow, random.key(0), ((data,), sizes), anatomy, budget, 2)


def test_the_bits_of_all_restarts_count_before_the_first_draw(monkeypatch):
    """A reading of 0.1 s: two for each visit of two bits in each restart are over half of it."""
    readings = 2 * samplers.RESTARTS * Rules().max_sweeps * 2
    monkeypatch.setattr(samplers.starts, "seconds_of_reading", lambda *_: 0.1)
    data = np.random.default_rng(0).normal(size=(6, 3))
    with pytest.raises(BudgetError, match="before a draw it takes about"):
        samplers.nuts(
            binary_sparse_coding, random.key(0), data, num_causes=2, num_warmup=1, num_samples=1,
            num_chains=1, budget=0.19 * readings, bits=samplers.LATENT,
        )  # fmt: skip
