"""`latentbits check`: what it says of tables and programs, and what it refuses."""

import subprocess
import sys

import numpy as np
import pytest
from typing_commands import refused, run

# check: tables


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two good tables, and the user in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    rng = np.random.default_rng(0)
    np.savetxt(
        "bits.csv",
        rng.random((12, 4)) < 0.4,
        delimiter=",",
        fmt="%d",
        header="a,b,c,d",
        comments="",
    )
    np.savetxt("real.csv", rng.normal(size=(12, 4)), delimiter=",", header="a,b,c,d", comments="")
    yield tmp_path
    for name in [x for x in sys.modules if x.startswith("mine")]:
        del sys.modules[name]


@pytest.mark.usefixtures("folder")
def test_check_says_what_it_found(capsys):
    result = run(
        capsys, "check", "binary_sparse_coding", "--data", "real.csv", "--set", "num_causes=3"
    )
    assert (result.status, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines()]
    assert ["weights", "parameter", "(3,", "4)", "Normal"] in rows
    assert ["causes", "latent,", "binary", "(12,", "3)", "BernoulliProbs"] in rows
    assert ["observed", "observed", "(12,", "4)", "Normal"] in rows
    for name in (["TruncatedEM"], ["NUTS"], ["SVI", "mean_field"], ["MAP"]):
        assert [*name, "yes"] in rows
    assert "DiscreteGibbs          no: 'causes' is a vector of bits" in result.out
    assert "all 8 states summed" in result.out
    assert "quadratic, one Hessian for all data" in result.out
    assert "log joint affine in the datum: rows × states are one product" in result.out
    # 12 rows, 8 states, 4 columns: the form in the bits, 4 × (4 + 8), would cost more than 8 × 4.
    assert "marginal  8 states of all rows in one product: 3.8e+02 multiplications" in result.out
    assert "(every state of every row: 3.8e+02, 0.0 MB)" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_check_takes_holes_and_categories(folder, capsys):
    text = (folder / "bits.csv").read_text().splitlines()
    text[3] = "?" + text[3][1:]
    (folder / "bits.csv").write_text("\n".join(text))
    result = run(
        capsys, "check", "bernoulli_mixture", "--data", "bits.csv", "--set", "num_components=3"
    )
    assert (result.status, result.err) == (0, "")
    assert "1 cell missing" in result.out
    assert "latent, categorical, 3 values" in result.out
    assert "log joint affine in the datum: rows × states are one product" in result.out
    assert "TruncatedEM" in result.out
    assert "no: component is not binary" in result.out


CHAIN = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan


def model(data):
    stay = numpyro.sample("stay", dist.Beta(2.0, 1.0))

    def step(before, now):
        on = numpyro.sample("on", dist.Bernoulli(jnp.where(before == 1, stay, 1.0 - stay)))
        numpyro.sample("seen", dist.Normal(on, 1.0).expand([4]).to_event(1), obs=now)
        return on, None

    scan(step, jnp.array(0), data)
"""


def test_check_reads_chains(folder, capsys):
    (folder / "mine.py").write_text(CHAIN)
    result = run(capsys, "check", "mine:model", "--data", "real.csv")
    assert (result.status, result.err) == (0, "")
    assert "hidden Markov chain of order 1: 2 states per step, 12 steps, 1 sequence" in result.out
    assert "forward sums: 48 terms" in result.out
    assert "yes: Baum and Welch's algorithm" in result.out
    assert "mask " not in result.out


def test_check_names_masked_latents(folder, capsys):
    masked = CHAIN.replace("1.0 - stay)))", "1.0 - stay)).mask(now[0] > 0))")
    (folder / "mine.py").write_text(masked)
    result = run(capsys, "check", "mine:model", "--data", "real.csv")
    assert (result.status, result.err) == (0, "")
    assert "mask     not applied to the latent on: it keeps its distribution" in result.out


MEET = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(data):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", {rows}):
        kind = numpyro.sample("kind", dist.Bernoulli(0.4))
        {between}
        numpyro.sample("seen", dist.Normal(mean[kind{index}], 1.0), obs=data[:, 0])
"""
PARENT = {"rows": "len(data)", "between": "", "index": "[..., jnp.arange(len(data)) // 2]"}
OTHERS = {
    "rows": 5, "between": "pass\n    with numpyro.plate('answers', len(data)):",
    "index": "[..., jnp.arange(len(data)) % 5]",
}  # fmt: skip


@pytest.mark.parametrize("how", [PARENT, OTHERS], ids=["rows of the same plate", "of another"])
def test_check_reads_rows_that_meet_as_em_does(folder, capsys, how):
    (folder / "mine.py").write_text(MEET.format(**how))
    result = run(capsys, "check", "mine:model", "--data", "real.csv")
    assert (result.status, result.err) == (0, "")
    assert "1 discrete latent site along a graph" in result.out
    assert ["EM", "yes:", "over", "the", "graph"] in [x.split() for x in result.out.splitlines()]


SOME = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(data):
    data = jnp.asarray(data)
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(data), {plate}):
        batch = numpyro.subsample(data, event_dim=1)
        kind = numpyro.sample("kind", dist.Bernoulli(0.4))
        numpyro.sample("seen", dist.Normal(mean[kind], 1.0), obs=batch[..., 0]{mask})
"""


@pytest.mark.parametrize(
    "how",
    [{"plate": "subsample_size=5", "mask": ""}, {"plate": "", "mask": ", obs_mask=data[:, 1] > 0"}],
    ids=["drawn rows", "missing responses"],
)
def test_check_reads_all_rows_and_the_responses_that_are_there(folder, capsys, how):
    (folder / "mine.py").write_text(SOME.format(**how))
    result = run(capsys, "check", "mine:model", "--data", "real.csv")
    assert (result.status, result.err) == (0, "")
    assert "plate    rows, 12 rows" in result.out and "each datum stands for itself" in result.out


@pytest.mark.usefixtures("folder")
def test_check_without_latents(capsys):
    result = run(capsys, "check", "bernoulli_product", "--data", "bits.csv")
    assert (result.status, result.err) == (0, "")
    assert "no: no latent in the data plate" in result.out


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("third.csv", "a,b\n0,1\n1,2\n0,0\n", ("row 3", "'b'", "2")),
        ("constant.csv", "a,b\n0,1\n1,1\n", ("'b'", "every cell is 1")),
        ("table.doc", "0 1", ("no known kind",)),
    ],
)
def test_check_refuses_a_bad_table(folder, capsys, name, content, words):
    (folder / name).write_text(content)
    assert refused(run(capsys, "check", "latent_trait", "--data", name), name, *words)


@pytest.mark.usefixtures("folder")
def test_check_refuses_a_table_that_is_not_there(capsys):
    assert refused(run(capsys, "check", "latent_trait", "--data", "no.csv"), "no such file")
    assert refused(run(capsys, "check", "latent_trait", "--data", "."), "folder")


def test_check_refuses_real_numbers_for_bits_but_takes_bits_for_real_numbers(folder, capsys):
    assert refused(run(capsys, "check", "latent_trait", "--data", "real.csv"), "row 2", "'a'")
    (folder / "words.csv").write_text("a,b\n0.5,1\n1,many\n")
    command = ("check", "binary_sparse_coding", "--set", "num_causes=2", "--data")
    assert refused(run(capsys, *command, "words.csv"), "row 3", "'b'", "many")


# check: programs and their arguments


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "arguments, words",
    [
        (["latent_trai"], ("latent_trait?", "module:function")),
        (["binary_sparse_coding"], ("needs num_causes", "--set num_causes=")),
        (["latent_trait", "--set", "num_factor=2"], ("no such argument", "num_factors?")),
        (["latent_trait", "--set", "num_factors"], ("NAME=VALUE",)),
        (["latent_trait", "--set", "num_factors=two"], ("a whole number", "'two'")),
        (["nowhere:model"], ("no module 'nowhere'",)),
        (["mine.py:model"], ("mine:model",)),
        (["noisy_or_network", "--set", "layers=()"], ("`layers` is empty",)),
    ],
)
def test_check_refuses_what_cannot_be_called(capsys, arguments, words):
    assert refused(run(capsys, "check", *arguments, "--data", "bits.csv"), *words)


OWN = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

{before}

def model(data, num_causes=2):
    weights = numpyro.sample(
        "weights", dist.Normal(0, 1).expand((num_causes, data.shape[1])).to_event(2))
    {plate}
        causes = numpyro.sample(
            "causes", dist.Bernoulli(0.3 * jnp.ones(num_causes)).to_event(1))
        {body}
        numpyro.sample("seen", dist.{fn}.to_event(1), obs={obs})
"""
GOOD = {
    "before": "",
    "plate": 'with numpyro.plate("people", len(data)):',
    "body": "",
    "fn": "Normal(causes @ weights, 1.0)",
    "obs": "data",
}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"before": "def f(:"}, ("mine.py, line 6", "syntax")),
        ({"before": "import nothing_like_it"}, ("nothing_like_it", "mine.py, line 6")),
        ({"plate": 'with numpyro.plate("people", 12):'}, ("12 rows when", "len(data)")),
        ({"body": "causes = causes @ jnp.ones(9)"}, ("TypeError", "mine.py, line 14")),
        ({"body": "weights = weights / 0.0"}, ("log density is", "'seen'")),
        ({"fn": "Exponential(jnp.exp(causes @ weights))"}, ("'seen' cannot be -", "column")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_check_refuses_a_program_of_ones_own_and_says_where(folder, capsys, change, words):
    (folder / "mine.py").write_text(OWN.format(**{**GOOD, **change}))
    assert refused(run(capsys, "check", "mine:model", "--data", "real.csv"), *words)


def test_check_takes_a_program_of_ones_own_in_a_process_of_its_own(folder):
    (folder / "mine.py").write_text(OWN.format(**GOOD))
    command = [sys.executable, "-m", "latentbits", "check", "mine:model", "--data", "real.csv"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "plate    people, 12 rows" in done.stdout


CROSSED = """
import numpyro
import numpyro.distributions as dist

def model(data):
    with numpyro.plate("items", data.shape[1], dim=-1):
        ease = numpyro.sample("ease", dist.Normal(0, 1))
    with numpyro.plate("people", len(data), dim=-2):
        able = numpyro.sample("able", dist.Bernoulli(0.4))
        with numpyro.plate("items", data.shape[1], dim=-1):
            numpyro.sample("seen", dist.Bernoulli(logits=ease + able), obs=data)
"""


def test_check_finds_the_plate_that_holds_the_latents(folder, capsys):
    (folder / "mine.py").write_text(CROSSED)
    command = ("check", "mine:model", "--data", "bits.csv")
    assert refused(run(capsys, *command, "--plate", "rows"), "no plate 'rows'")
    result = run(capsys, *command)
    assert (result.status, result.err) == (0, "")
    assert "plate    people, 12 rows" in result.out and "all 2 states summed" in result.out


def test_check_wants_a_mask_where_cells_are_missing(folder, capsys):
    (folder / "mine.py").write_text(OWN.format(**GOOD))
    text = (folder / "real.csv").read_text().splitlines()
    text[2] = text[2].rpartition(",")[0] + ","
    (folder / "real.csv").write_text("\n".join(text))
    result = run(capsys, "check", "mine:model", "--data", "real.csv")
    assert refused(result, "1 missing", "datum 2", "column d", "takes no argument mask")
