"""Methods run until they are trusted: samplers that go on, and artificial methods named rightly."""

import subprocess
import sys

import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from scipy.stats import beta

import inference.comparison.contenders as contending
from inference.baselines.pacing import BudgetError
from inference.baselines.samplers import HIGH_ACCEPT, Adaptation, Advice, Draws, nuts
from inference.baselines.variational import svi
from inference.cli import main
from inference.comparison import judge
from inference.comparison.compare import compare
from inference.comparison.contenders import Contender
from inference.comparison.files import load_parts, save_parts
from inference.running.contract import Stop
from ppl_models import bernoulli_product

TRUTH = np.linspace(0.2, 0.8, 8)
TABLE = np.random.default_rng(0).integers(0, 2, (30, 3)).astype(np.float32)


def enough_at(count):
    """Draws of each chain that are enough."""
    return lambda draws, _: Advice.ENOUGH if len(draws.clock) >= count else Advice.GO_ON


def test_a_sampler_goes_on_where_it_stopped():
    """The same draws as without a stop, also from a stop in warm-up."""
    run = {"num_warmup": 60, "num_samples": 1000}
    whole = nuts(bernoulli_product, random.key(1), TABLE, until=enough_at(200), **run)
    first = nuts(bernoulli_product, random.key(1), TABLE, until=enough_at(100), **run)
    again = nuts(bernoulli_product, random.key(1), TABLE, until=enough_at(200), resume=first, **run)
    count = min(len(whole.clock), len(again.clock))
    assert len(first.clock) == 100 < count
    for draws in (whole, again):
        assert draws.stop is Stop.STEPS and np.all(np.diff(draws.clock) >= 0)
    np.testing.assert_array_equal(
        whole.params["probs"][:, :count], again.params["probs"][:, :count]
    )
    with pytest.raises(BudgetError, match="no draw was made") as stopped:
        nuts(bernoulli_product, random.key(1), TABLE, until=enough_at(9), budget=1e-9, **run)
    assert stopped.value.chains.warmed < 60
    late = nuts(
        bernoulli_product, random.key(1), TABLE, until=enough_at(9), resume=stopped.value.chains,
        **run,
    )  # fmt: skip
    np.testing.assert_array_equal(late.params["probs"], whole.params["probs"][:, :100])


def test_another_warm_up_begins_where_the_chains_are_and_drops_their_draws():
    asked = []

    def until(draws, adaptation):
        asked.append((len(draws.clock), adaptation))
        return [Advice.LONGER_WARMUP, Advice.SHORTER_STEPS, Advice.ENOUGH][len(asked) - 1]

    draws = nuts(
        bernoulli_product, random.key(0), TABLE, num_warmup=20, num_samples=500, until=until
    )
    wanted = Adaptation(20), Adaptation(40, dense=True), Adaptation(40, HIGH_ACCEPT, True)
    assert asked == [(100, x) for x in wanted]
    assert draws.params["probs"].shape == (4, 100, 3) and draws.chains.adaptation == wanted[2]


def chain_of(values, diverging=0):
    """Draws of a sampler with this log joint, so many of them divergent."""
    flags = np.zeros(values.shape, bool)
    flags.flat[:diverging] = True
    stats = {"lp": values, "diverging": flags}
    clock = np.arange(1.0, values.shape[1] + 1)
    params = {"probs": np.random.default_rng(1).uniform(size=(*values.shape, 3))}
    return Draws(params, stats, np.empty(0), {}, clock, float(clock[-1]), 0.0, "")


@pytest.mark.parametrize(
    ("apart", "draws", "divergences", "adaptation", "advice"),
    [
        (0.0, 500, 0, Adaptation(50), Advice.ENOUGH),
        (0.0, 50, 0, Adaptation(50), Advice.GO_ON),  # too few effective draws
        (2.0, 90, 0, Adaptation(50), Advice.GO_ON),
        (2.0, 110, 0, Adaptation(50), Advice.LONGER_WARMUP),
        (0.0, 500, 3, Adaptation(50), Advice.GO_ON),
        (0.0, 500, 4, Adaptation(50), Advice.SHORTER_STEPS),
        (0.0, 500, 4, Adaptation(50, HIGH_ACCEPT), Advice.ENOUGH),  # it is wrong, and done
    ],
)
def test_what_draws_ask_for(monkeypatch, apart, draws, divergences, adaptation, advice):
    values = np.random.default_rng(0).normal(size=(4, draws)) + apart * np.arange(4)[:, None]
    field = type("Field", (), {
        "model": bernoulli_product, "train_arguments": ((TABLE,), {}), "judges": None,
    })  # fmt: skip
    scores = type("Scores", (), {"mean_error": lambda _: 0.001, "test_step": 1})
    monkeypatch.setattr(judge, "score", lambda *_: scores())
    watch = judge.Watch(field)
    assert watch(chain_of(values, divergences), adaptation) is advice
    assert (watch.seconds is None) == (advice is not Advice.ENOUGH)


def test_a_guide_runs_in_cycles_until_it_gains_no_more():
    once = svi(bernoulli_product, random.key(0), TABLE, num_steps=100)
    twice = svi(bernoulli_product, random.key(0), TABLE, num_steps=100, gain=1e9)
    assert len(once.losses) == 100 and len(twice.losses) == 300 and twice.stop is Stop.STEPS
    assert len(twice.clock) == len(twice.snapshots["probs"]) == 100
    late = svi(bernoulli_product, random.key(0), TABLE, num_steps=100, gain=-1e9, budget=0.5)
    assert late.stop is Stop.BUDGET and len(late.losses) in (100, 300, 700, 1500, 3100, 6300)


def artificial(name, kind, made, **facts):
    """A contender that hands out what `made` draws from the exact posterior of the table."""

    def run(_model, key, arguments, _limits, **_):
        (rows,), _ = arguments
        seed = np.random.default_rng(np.asarray(random.key_data(key)))
        ones, count = np.asarray(rows).sum(0), len(rows)
        params, stats = made(seed, 1.0 + ones, 1.0 + count - ones)
        draws = next(iter(params.values())).shape[1]
        clock = np.linspace(1.0, 2.0, draws)
        flat = {x: np.swapaxes(v, 0, 1) for x, v in params.items()}
        draws = Draws(params, stats, np.empty(0), flat, clock, 2.0, 0.0, "")
        return draws._replace(**facts), None

    return Contender(name, False, kind, run)


def exact(seed, a, b, count=600):
    probs = seed.beta(a, b, (4, count, len(a)))
    return {"probs": probs}, {"lp": beta.logpdf(probs, a, b).sum(-1)}


def few(seed, a, b):
    return exact(seed, a, b, 20)


def worse(seed, a, b):
    """At least 0.02 nats per row worse than the mean: off it on the side away from the truth."""
    del seed
    mean = a / (a + b)
    shift = np.sqrt(2 * 0.02 / len(a) * mean * (1 - mean))
    return {"probs": (mean + np.where(mean < TRUTH, -shift, shift))[None, None]}, {}


def narrow(seed, a, b):
    """Half as wide as the posterior."""
    c, d = 4 * a, 4 * b
    probs = seed.beta(c, d, (1, 500, len(a)))
    log_p, log_q = (beta.logpdf(probs, *x).sum(-1) for x in ((a, b), (c, d)))
    return {"probs": probs}, {"log_p": log_p, "log_q": log_q}


def test_artificial_methods_are_named_for_what_they_are(monkeypatch):
    """One 0.02 nats per row worse, one right but slow, one too narrow: in 20 of 20 runs."""
    late = {"stop": Stop.BUDGET, "seconds": 120.0}
    methods = [
        artificial("exact", "sampler", exact), artificial("worse", "point", worse),
        artificial("slow", "sampler", few, **late),
        artificial("narrow", "variational", narrow, starts=np.zeros(2)),
    ]  # fmt: skip
    every = {x.name: x for x in methods}
    monkeypatch.setattr(contending, "contenders", lambda _: (every, {}))
    for number in range(20):

        def fresh(count, number=number):
            return (np.random.default_rng(number + 99).random((count, 8)) < TRUTH).astype(float)

        data = (np.random.default_rng(number).random((400, 8)) < TRUTH).astype(float)
        found = compare(
            bernoulli_product, data, truth={"probs": TRUTH}, fresh=fresh, num_draws=1,
            rng_key=random.key(number), prior_probs=dist.Beta(1.0, 1.0),
        )  # fmt: skip
        marks = {x: (r["score"], r["uncertainty"]) for x, r in found.rows.items()}
        assert marks["exact"] == ("ARRIVED", "ARRIVED"), number
        assert marks["worse"] == ("WRONG", "NONE"), number
        assert marks["slow"][1] == "NOT_YET" and marks["slow"][0] != "WRONG", number
        assert marks["narrow"] == ("ARRIVED", "WRONG"), number
        said = dict(found.verdict)
        assert "nats per row behind the best" in said["worse"]
        assert "of 400 effective draws" in said["slow"] and "more" in said["slow"]
        assert "its intervals are not to be trusted: Pareto k̂" in said["narrow"]
        assert "not yet" not in said["exact"] + said["worse"] + said["narrow"]


def test_a_comparison_goes_on_in_another_process(tmp_path, capsys):
    """What arrived is not run again; NUTS goes on where the limit ended it."""
    out = tmp_path / "out"
    asked = ["compare", "bernoulli_product", "--example", "small", "--methods", "MAP,NUTS"]
    assert main([*asked, "--jobs", "1", "--limit", "0.05", "--out", str(out)]) == 0
    before, chains = load_parts(out / "parts")
    assert before[0].rows["NUTS"]["score"] == "NOT_YET" and "NUTS" in chains[0]
    assert "NUTS: not yet" in capsys.readouterr().out
    for wrong, words in (
        (["--limit", "0.01"], "--limit 0.01: must be more than 0.05"),
        (["bernoulli_product", "--limit", "9"], "leave out MODEL"),
    ):
        assert main(["compare", *wrong, "--continue", str(out)]) == 2
        assert words in capsys.readouterr().err
    assert main(["compare", "--continue", str(tmp_path)]) == 2
    assert "holds no comparison that was ended early" in capsys.readouterr().err
    more = ["--continue", str(out), "--limit", "60", "--jobs", "1"]
    command = [sys.executable, "-m", "inference", "compare", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "NUTS: " in done.stdout and "not yet" not in done.stdout
    assert not (out / "parts").exists() and (out / "NUTS.nc").exists()


def test_what_is_needed_to_go_on_survives_its_files(tmp_path):
    run = {"num_warmup": 20, "num_samples": 1000}
    draws = nuts(bernoulli_product, random.key(1), TABLE, until=enough_at(100), **run)
    with pytest.raises(BudgetError) as stopped:
        nuts(bernoulli_product, random.key(1), TABLE, until=enough_at(9), budget=1e-9, **run)
    part = compare(bernoulli_product, TABLE, ["MAP"])
    save_parts([part], [{"NUTS": draws, "Gibbs": stopped.value.chains}], tmp_path / "parts")
    (again,), (chains,) = load_parts(tmp_path / "parts")
    assert again.rows == part.rows and chains["NUTS"].chains.adaptation == Adaptation(20)
    np.testing.assert_array_equal(chains["NUTS"].params["probs"], draws.params["probs"])
    for old, new in (
        (draws.chains, chains["NUTS"].chains),
        (stopped.value.chains, chains["Gibbs"]),
    ):
        assert (old.depth, old.warmed) == (new.depth, new.warmed)
        for x, y in zip(old.state, new.state, strict=True):
            np.testing.assert_array_equal(x, y)
    ran = []
    same = compare(
        bernoulli_product, TABLE, ["MAP"], earlier=part, on_result=lambda *x: ran.append(x)
    )
    assert part.rows["MAP"]["score"] == "ARRIVED" and not ran  # it is not run again
    assert same.rows["MAP"] == part.rows["MAP"] and same.headline == part.headline
    other = TABLE.copy()
    other[0, 0] = 1.0 - other[0, 0]
    with pytest.raises(ValueError, match="is not the one that was compared"):
        compare(bernoulli_product, other, ["MAP"], earlier=part)


def test_an_interrupted_continuation_loses_nothing(monkeypatch):
    """Ctrl-C while NUTS goes on: its earlier numbers and its state are still there."""
    chains = {}
    first = compare(bernoulli_product, TABLE, ["MAP", "NUTS"], limit=0.3, chains=chains)
    state = chains.setdefault("NUTS", object())
    first.rows["NUTS"] |= {"status": "ended by the limit", "uncertainty": "NOT_YET"}

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("inference.comparison.compare.run", stop)
    again = compare(bernoulli_product, TABLE, ["MAP", "NUTS"], earlier=first, chains=chains)
    assert again.about["interrupted"] and chains == {"NUTS": state}
    assert again.held_out.keys() == first.held_out.keys()
    assert again.rows["NUTS"]["status"] == "ended by the limit"
