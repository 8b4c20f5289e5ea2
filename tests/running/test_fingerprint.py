"""A run is known again by its settings, program, data, key and version, in any process."""

import importlib
import json
import linecache
import os
import subprocess
import sys
from functools import partial, wraps
from textwrap import dedent

import jax
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from hostile import refused
from jax import random
from numpyro import handlers

from inference import EM, ExactGradient, TruncatedEM
from inference.running.checkpoint import origin
from inference.running.fingerprint import files
from inference.running.restarts import Restarts
from ppl_models import bernoulli_mixture, binary_sparse_coding, combination_machine

ROWS = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]] * 3, np.float32)
SOURCES = {
    "own": """
        from dataclasses import dataclass
        from functools import partial
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist
        import helper
        from helper import SLOPE

        PRIOR = dist.Dirichlet(jnp.full(2, 2.0))
        CENTRE = 0.5
        WORDS = frozenset(("narrow", "wide"))
        OFFSETS = jnp.zeros(3)

        class Limits:
            low = 0.0

        @dataclass
        class Width:
            value: float

        WIDTH = Width(0.98)
        clip = partial(jnp.clip, max=0.99)
        bend = lambda x: 1.0 * x

        def shrink(x):
            return CENTRE + WIDTH.value * (x - CENTRE)

        def program(data=None, *, power=1.0):
            mixing = numpyro.sample("mixing", PRIOR)
            with numpyro.plate("components", 2):
                law = dist.Uniform(Limits.low, 1.0).expand((3,)).to_event(1)
                probs = numpyro.sample("probs", law)
            probs = clip(bend(shrink(helper.raised(probs, power)))) + SLOPE * OFFSETS
            if {"narrow", "wide"} & WORDS:
                probs = 1.0 * probs
            with numpyro.plate("data", len(data)):
                component = numpyro.sample("component", dist.Categorical(mixing))
                numpyro.sample("seen", dist.Bernoulli(probs[component]).to_event(1), obs=data)
    """,
    "helper": """
        from deeper import EXPONENT
        SLOPE = 0.1

        def raised(x, power):
            from later import SHIFT
            return x ** (power * EXPONENT) + SHIFT
    """,
    "deeper": "EXPONENT = 1.0",
    "later": "SHIFT = 0.0",
}
EDITS = {
    "a distribution": ("own", "jnp.full(2, 2.0)", "jnp.full(2, 3.0)"),
    "a number": ("own", "CENTRE = 0.5", "CENTRE = 0.4"),
    "a set": ("own", '("narrow", "wide")', '("broad", "thin")'),
    "an array": ("own", "jnp.zeros(3)", "jnp.ones(3)"),
    "a class attribute": ("own", "low = 0.0", "low = 0.1"),
    "a dataclass": ("own", "Width(0.98)", "Width(0.97)"),
    "a partial": ("own", "max=0.99", "max=0.98"),
    "a lambda": ("own", "1.0 * x", "1.1 * x"),
    "a function": ("own", "(x - CENTRE)", "(x - CENTRE / 2)"),
    "the program": ("own", "1.0 * probs", "0.9 * probs"),
    "a default": ("own", "power=1.0", "power=2.0"),
    "a number of a helper": ("helper", "SLOPE = 0.1", "SLOPE = 0.2"),
    "a function of a helper": ("helper", "+ SHIFT", "- SHIFT"),
    "a helper of a helper": ("deeper", "1.0", "2.0"),
    "a helper imported when it is called": ("later", "0.0", "0.1"),
}


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Writes modules to a folder and imports the first of them, as a new process would."""
    folder = tmp_path / "sources"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written = set()

    def imported(sources):
        written.update(name.replace("/", ".") for name in sources)
        for name, text in sources.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        for name in written:
            sys.modules.pop(name.removesuffix(".__init__"), None)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(sources)).replace("/", "."))

    yield imported
    for name in written:
        sys.modules.pop(name.removesuffix(".__init__"), None)


def run(program, folder, **settings):
    return EM(program).run(random.key(0), 2, ROWS, checkpoint=folder, **settings)


def test_every_edit_of_a_program_is_seen(tmp_path, imported):
    folder = tmp_path / "saved"
    first = run(imported(SOURCES).program, folder)
    for edit, (name, old, new) in EDITS.items():
        assert old in SOURCES[name], edit
        edited = {**SOURCES, name: SOURCES[name].replace(old, new)}
        with refused("its program", str(folder)):
            run(imported(edited).program, folder)
            pytest.fail(f"{edit} was changed, and the run went on")
    again = run(imported(SOURCES).program, folder)
    np.testing.assert_array_equal(first.losses, again.losses)
    with refused("its program in deeper.py is #", "here it is #"):
        run(imported({**SOURCES, "deeper": "EXPONENT = 2.0"}).program, folder)


def test_files_of_a_package_are_those_that_the_program_imports(imported):
    names = ["absolute", "nested/one", "nested/two", "lazy", "sibling", "unrelated"]
    module = imported({
        "bundle/own": """
            import numpyro.distributions
            from . import CONSTANT, sibling
            from .nested.one import thing
            from bundle.absolute import thing

            def program(data=None):
                from .lazy import thing
        """,
        "bundle/__init__": "CONSTANT = 1.0",
        "bundle/nested/__init__": "",
        "bundle/distributions": "",
        **{f"bundle/{name}": "thing = None" for name in names},
        "bundle/nested/one": "from .two import thing",
    })  # fmt: skip
    found = dict(files(module.program))
    assert set(found) == {"__init__.py", "own.py", "absolute.py", "lazy.py", "sibling.py",
                          "nested/__init__.py", "nested/one.py", "nested/two.py"}  # fmt: skip


def test_a_module_with_the_name_of_one_of_pythons_is_read(imported):
    module = imported({"profile": "def program(data=None):\n    pass"})
    assert list(dict(files(module.program))) == ["profile.py"]


def made_of(method, *args, rng_key=None, start=None, **kwargs):
    return origin(method, args, kwargs, rng_key, start, "one start")


def differing(one, other):
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


def test_settings_are_compared_field_by_field():
    def made(**settings):
        return made_of(TruncatedEM(binary_sparse_coding, **settings), np.zeros((2, 3)))

    one, two = ({"weights": np.array([0.1, x])} for x in (0.1, 0.2))
    assert made(parameter_noise=one) == made(parameter_noise={**one})
    changed = differing(made(parameter_noise=one), made(parameter_noise=two))
    assert changed == {"setting.parameter_noise.weights"}
    assert differing(made(prior=True), made(prior=False)) == {"setting.prior"}
    nested = [made_of(Restarts(EM(bernoulli_mixture, gradient_steps=n), 2)) for n in (3, 4)]
    assert differing(*nested) == {"setting.method.gradient_steps"}
    optimizers = [made_of(ExactGradient(combination_machine, optimizer=optax.adam(rate)))
                  for rate in (0.1, 0.2)]  # fmt: skip
    assert len(differing(*optimizers)) == 1


def test_priors_are_compared_by_value_whatever_was_computed_from_them():
    def made(prior):
        return made_of(EM(partial(binary_sparse_coding, prior_weights=prior)))

    plain = made(dist.Normal(0.0, 1.0))
    assert plain == made(dist.Normal(0.0, 1.0))
    assert differing(plain, made(dist.Normal(0.0, 2.0))) == {"program.prior_weights.scale"}
    assert plain != made(dist.Normal(0.0, 1.0).expand((2,)))
    covariance = np.eye(2) + 0.5
    one, used = (dist.MultivariateNormal(np.zeros(2), covariance) for _ in range(2))
    assert used.precision_matrix.shape == (2, 2)  # kept in it from then on
    assert made(one) == made(used)
    assert made(one) != made(dist.MultivariateNormal(np.zeros(2), 2 * covariance))


def test_programs_inside_partials_handlers_and_wrappers_are_found(imported):
    def decorated(program, width):
        @wraps(program)
        def wrapper(*args, **kwargs):
            return width, program(*args, **kwargs)

        return wrapper

    around = {
        "partial": lambda f, x: partial(f, power=x),
        "substitute": lambda f, x: handlers.substitute(f, data={"mixing": np.array([x, 1 - x])}),
        "scale": lambda f, x: handlers.scale(f, scale=x),
        "closure": decorated,
        "jit": lambda f, x: jax.jit(partial(f, power=x)),
        "both": lambda f, x: handlers.block(partial(decorated(f, 1.0), power=x), hide=["mixing"]),
    }

    def prints(sources):
        program = imported(sources).program
        return {(name, x): made_of(EM(wrap(program, x)))
                for name, wrap in around.items() for x in (0.2, 0.3)}  # fmt: skip

    edited = {**SOURCES, "deeper": "EXPONENT = 2.0"}
    first, second, other = prints(SOURCES), prints(SOURCES), prints(edited)
    assert first == second
    for name in around:
        changed = differing(first[name, 0.2], first[name, 0.3])
        assert len(changed) == 1 and min(changed).startswith("program."), name
        assert differing(first[name, 0.2], other[name, 0.2]) == {"program in deeper.py"}, name


def cell(text, number):
    """A function of a notebook: its text is where `inspect` finds it, and there is no file."""
    name, space = f"<cell {number}>", {"__name__": "__notebook__"}
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), space)
    return space["program"]


def test_a_program_in_a_notebook_goes_by_its_text(tmp_path):
    text = dedent(SOURCES["own"]).replace("import helper\nfrom helper import SLOPE", "SLOPE = 1.0")
    text = text.replace("helper.raised(probs, power)", "probs**power")
    text = text.replace("power=1.0", "power=CENTRE")
    first = run(cell(text, 1), tmp_path)
    again = run(cell(f"# Another cell.\n\n{text}", 2), tmp_path)
    np.testing.assert_array_equal(first.losses, again.losses)
    with refused("its program is program#"):
        run(cell(text.replace("1.0 * probs", "0.9 * probs"), 3), tmp_path)
    with refused("its program.defaults.1.power is 0.5, here it is 0.4"):
        run(cell(text.replace("CENTRE = 0.5", "CENTRE = 0.4"), 4), tmp_path)


def test_what_cannot_be_compared_is_refused_by_name_before_any_work(tmp_path):
    class Start:
        def __call__(self, *_, **__):
            pytest.fail("the run has begun")

    space = {"__name__": "nowhere"}
    exec("def program(data): pass", space)
    what = "or run without a checkpoint"
    folder = tmp_path / "saved"
    with refused("setting.start (test_fingerprint", "Start) cannot be compared", what):
        EM(bernoulli_mixture, start=Start()).run(
            random.key(0), 2, ROWS, num_components=2, checkpoint=folder
        )
    with refused("setting.start.args.0 (", "Start) cannot be compared", what):
        made_of(EM(bernoulli_mixture, start=partial(made_of, Start())))
    with refused("program (nowhere.program) cannot be compared", "defined in a file"):
        EM(space["program"]).run(random.key(0), 2, ROWS, checkpoint=folder)
    with refused("data.0 (", what):
        made_of(EM(bernoulli_mixture), np.array([{}], object))
    assert not folder.exists()


SCRIPT = """
    import json, sys, linecache, os
    from functools import partial
    import numpy as np
    import numpyro.distributions as dist
    import optax
    from jax import random
    from inference import EM, QuadratureEM
    from inference.cli import main
    from ppl_models import bernoulli_mixture, latent_trait
    from own import program

    rows, folder = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 1]], sys.argv[1]
    change = json.loads(sys.argv[2])
    text = "def own(data=None, *, num_components):\\n    "
    text += "return mixture(data, num_components=num_components" + change.get("cell", "") + ")\\n"
    name, space = f"<cell {id(text)}>", {"mixture": bernoulli_mixture}
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), space)
    table = np.arange(2000.0)
    table[1000] += change.get("table", 0.0)
    scale = change.get("prior", 3.0)
    cases = {
        "prior": (QuadratureEM(latent_trait, prior=True),
                  {"num_factors": 1, "prior_weights": dist.Normal(0.0, scale)}),
        "partial": (EM(partial(bernoulli_mixture, num_components=2,
                               prior_mixing=dist.Dirichlet(np.full(2, scale)))), {}),
        "table": (EM(bernoulli_mixture, start=partial(lambda *a, table, words, **k: {}, table=table,
                                                      words=frozenset(("narrow", "wide")))),
                  {"num_components": 2}),
        "cell": (EM(space["own"]), {"num_components": 2}),
        "program": (EM(program), {}),
    }
    for name, (method, kwargs) in cases.items():
        try:
            method.run(random.key(0), 2, rows, checkpoint=f"{folder}/{name}", **kwargs)
            print("done", flush=True)
        except ValueError as error:
            print(error, flush=True)
    os.chdir(folder)
    command = "fit latent_trait --set num_factors=1 --data ok.csv --out f.nc --steps 40"
    assert main([*command.split(), "--checkpoint", "ck"]) == 0
"""


def test_runs_and_commands_are_known_again_in_processes_with_other_hash_seeds(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2, (60, 4))
    np.savetxt(tmp_path / "ok.csv", bits, "%d", ",", header="a,b,c,d", comments="")
    for name, text in {**SOURCES, "script": SCRIPT}.items():
        (tmp_path / f"{name}.py").write_text(dedent(text))

    def process(seed, **change):
        done = subprocess.run(
            [sys.executable, tmp_path / "script.py", tmp_path, json.dumps(change)], text=True,
            capture_output=True, check=False, env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = process(0)
    assert first[:5] == ["done"] * 5 and "log likelihood" in " ".join(first[5:])
    assert process(4) == first  # a seed that turns the two words of the set around
    change = {"prior": 2.0, "table": 1.0, "cell": ", prior_mixing=None"}
    prior, part, table, own, program, *printed = process(2, **change)
    assert "its argument.prior_weights.scale is 3.0, here it is 2.0" in prior
    assert "its program.prior_mixing.concentration is float64(2,)#" in part
    assert "its setting.start.table is float64(2000,)#" in table
    assert "its program is own#" in own
    assert program == "done" and printed == first[5:]
