"""Programs that no reading can handle: refused by name before any work, never read in silence."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from every_state import every
from hostile import assert_exit, examples, refused
from hypothesis import given
from hypothesis import strategies as st
from jax import random
from jax.scipy.special import logsumexp
from tools import near

from inference import EM, ProgramError, QuadratureEM, inspect, likelihood
from inference.running.contract import DivergedError

DATA = np.array([[0, 0, 1], [1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0]], np.float32)

SOUND = {
    "plate": "plate('data', len(data))",
    "latent": "Bernoulli(jnp.full(2, 0.3)).to_event(1)",
    "before": "",
    "logits": "latent @ weights",
    "likelihood": "Bernoulli(logits=logits)",
    "obs": "data",
}
"""The lines of a program, each of which may be replaced by a bad one."""

PROGRAM = """
def program(data):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((2, 3)).to_event(2))
    {before}
    with numpyro.{plate}:
        latent = numpyro.sample("latent", dist.{latent})
        logits = {logits}
        numpyro.sample("seen", dist.{likelihood}.to_event(1), obs={obs})
"""


def written(**lines):
    """A program with some of its lines replaced."""
    names = {"numpyro": numpyro, "dist": dist, "jnp": jnp, "np": np}
    exec(compile(PROGRAM.format(**{**SOUND, **lines}), "mine.py", "exec"), names)
    return names["program"]


BAD = {
    "wrong plate": (
        {"plate": "plate('columns', 3)", "obs": "data[:3]"},
        "the plate 'columns' has 3 rows, but no argument",
    ),
    "longer plate": ({"plate": "plate('data', 7)"}, "has 7 rows, but no"),
    "shorter plate": ({"plate": "plate('data', 5)", "obs": "data[:5]"}, "has 5 rows, but no"),
    "fixed plate": ({"plate": "plate('data', 6)"}, "has 6 rows when 5 are given"),
    "outside": (
        {"before": "k = numpyro.sample('kind', dist.Bernoulli(0.5))", "logits": "latent@weights+k"},
        "site 'kind' is discrete and outside the plate",
    ),
    "over rows": ({"logits": "latent @ weights + data.mean()"}, "changes when other rows"),
    "python if": ({"logits": "latent if latent[0, 0] > 0 else 0.0"}, "mine.py, line 7"),
    "numpy": ({"logits": "np.asarray(latent) @ weights"}, "mine.py, line 7"),
    "shapes": ({"logits": "latent @ weights.T"}, "mine.py, line 7"),
    "unobserved": ({"obs": "None"}, "nothing is observed inside the plate 'data'"),
    "name twice": ({"before": "numpyro.sample('latent', dist.Normal())"}, "unique names"),
    "raises": ({"before": "raise KeyError('two\\\\nlines')"}, "fails: KeyError"),
    "no argument": ({"before": "data.nothing"}, "AttributeError"),
    "many": ({"latent": "Bernoulli(jnp.full(10**9, 0.3)).to_event(1)", "logits": "weights[:1]"},
             "'latent' has 1000000000 values per datum"),
    "none": ({"latent": "Bernoulli(jnp.full(0, 0.3)).to_event(1)", "logits": "weights[:1]"},
             "'latent' has 0 values per datum"),
    "counts": ({"latent": "Poisson(jnp.ones(2)).to_event(1)"}, "counts without bound"),
    "bounded": ({"latent": "Beta(2 * jnp.ones(2), 2.0).to_event(1)"}, "no table of states"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_program_is_refused_by_name(case):
    lines, words = BAD[case]
    with refused(words):
        EM(written(**lines)).run(random.key(0), 1, DATA, progress_bar=False)


def test_em_sums_the_latents_of_a_program_without_a_plate():
    program, row = written(plate="handlers.mask(mask=True)", obs="data[0]"), DATA[0]
    start = np.array([[0.5, -1.0, 0.3], [1.2, 0.1, -0.7]])
    total = 0.0
    for state in ((0, 0), (0, 1), (1, 0), (1, 1)):
        on = 1 / (1 + np.exp(-(np.array(state) @ start)))
        total += np.prod(np.where(state, 0.3, 0.7)) * np.prod(np.where(row, on, 1 - on))
    em = EM(program, search=None)
    result = em.run(random.key(0), 1, DATA, init_params={"weights": jnp.asarray(start)})
    near(result.losses[0], -np.log(total))


@pytest.mark.parametrize("logits", [
    "jnp.stack([latent[i] @ weights for i in range(len(data))])",
    "latent.reshape(len(data), 2) @ weights",
    "(latent + latent.sum(0)) @ weights",
])  # fmt: skip
def test_em_on_programs_that_do_not_broadcast(logits):
    """An axis of states would be misread: they run as they are written, on all states."""
    data, program = DATA[:4], written(logits=logits)
    start = {"weights": jnp.array([[0.5, -1.0, 0.3], [1.2, 0.1, -0.7]])}
    result = EM(program, prior=True).run(random.key(0), 1, data, init_params=start)
    near(-result.losses[0], logsumexp(every(program, (data,), start, {"latent": ((4, 2), 2)})[1]))


@pytest.mark.parametrize("latent", ["Poisson(jnp.ones(2)).to_event(1)", "Dirichlet(jnp.ones(2))",
                                    "Beta(2 * jnp.ones(2), 2.0).to_event(1)"])  # fmt: skip
def test_latents_off_the_real_line_are_not_integrated_along_it(latent):
    program = written(latent=latent)
    with refused("latent: it "):
        QuadratureEM(program).run(random.key(0), 1, DATA)
    with refused("latent: it "):
        likelihood(program, DATA)


def test_a_good_one_is_taken():
    assert inspect(written(), (DATA,)).names == ("latent",)


@given(site=st.text(max_size=8), plate=st.text(max_size=8))
@examples(20)
def test_names_that_are_not_there(site, plate):
    with refused(f"no site {site!r} in the program"):
        inspect(written(), (DATA,), sites=[site])
    with refused(f"no plate {plate!r} in the program"):
        inspect(written(), (DATA,), plate=plate)


@given(
    st.dictionaries(
        st.sampled_from(sorted(SOUND)),
        st.sampled_from(["1 +", "[]", "data[9, 9, 9]", "None.x", "1 / 0"]),
    )
)
@examples(40)
def test_whatever_a_program_raises_is_said_in_one_line(lines):
    try:
        program = written(**lines)
    except SyntaxError:
        return
    try:
        inspect(program, (DATA,))
    except ProgramError as error:
        assert "\n" not in str(error)


def test_a_log_density_that_is_no_number_stops_the_run():
    program = written(likelihood="Normal(logits / (0.0 * latent[..., :1].sum()), 1.0)")
    with pytest.raises(DivergedError, match="the loss is nan at step 1"):
        EM(program).run(random.key(0), 3, DATA, progress_bar=False)


def test_commands_say_so_in_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = "import jax.numpy as jnp, numpyro, numpyro.distributions as dist\n"
    (tmp_path / "badly.py").write_text(
        text + PROGRAM.format(**{**SOUND, "logits": "latent @ weights.T"})
    )
    np.save(tmp_path / "bits.npy", DATA)
    __import__("badly")  # so that no folder of compiled code appears below
    for command in (
        ["check", "badly:program", "--data", "bits.npy"],
        ["fit", "badly:program", "--data", "bits.npy", "--out", "fit.nc"],
        ["compare", "badly:program", "--data", "bits.npy", "--out", "out"],
    ):
        assert_exit(capfd, command, "badly.py, line 8", folder=tmp_path)
