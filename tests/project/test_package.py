"""The package as a whole: what lies at the top, what importing it costs, which way imports run."""

import ast
import json
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_top_level_holds_what_it_should_and_nothing_else():
    """As git sees it: what a command wrote into the folder is the user's own."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = {name.partition("/")[0] for name in listed.stdout.split("\n") if name}
    wanted = (
        "pyproject.toml README.md LICENSE CITATION.cff CHANGELOG.md CONTRIBUTING.md latentbits "
        "ppl_models inference tests docs notebooks benchmarks"
    )
    assert {name for name in names if not name.startswith(".")} == set(wanted.split())


def test_importing_the_core_is_light_and_both_names_lead_to_the_same_modules():
    """Nothing that a report or a data set needs is loaded, and no device is touched: a user may
    still choose the platform, or start jax.distributed."""
    program = """
import json, sys
import inference.public, inference.cli, ppl_models, ppl_models.data
from jax._src import xla_bridge
heavy = {"arviz", "matplotlib", "sklearn", "mlxtend", "funsor", "pandas", "xarray", "h5py", "optax",
         "PIL", "pyarrow"}
print(json.dumps([sorted(heavy & set(sys.modules)), list(xla_bridge._backends)]))
import inference.reading.states, latentbits.inference.reading.states, latentbits, latentbits.models
assert inference is latentbits.inference and ppl_models is latentbits.models
assert inference.reading.states.AllStates is latentbits.AllStates
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == [[], []]


WINGS = {
    "types": set(),
    "numerics": {"types"},
    "compiling": {"types"},
    "rows": {"types", "numerics", "compiling"},
    "reading": {"types", "numerics", "compiling", "rows"},
    "running": {"types", "numerics", "compiling", "rows", "reading"},
    "certificates": {"types", "numerics", "compiling", "rows", "reading"},
}
WINGS["methods"] = {*WINGS}
WINGS["baselines"] = WINGS["evaluation"] = {*WINGS}
WINGS["posterior"] = {*WINGS}
WINGS["files"] = {*WINGS}
WINGS["items"] = WINGS["papers"] = {*WINGS}
WINGS["comparison"] = {*WINGS} - {"items"}
WINGS["commands"] = {*WINGS}
"""Wing -> the wings that it may import."""

FAMILIES = {
    "discrete": set(),
    "continuous": set(),
    "gibbs": set(),
    "moments": {"continuous"},
    "machines": {"discrete"},
}
"""Family of methods -> the other families that it may import."""


def imports(folder):
    """(file, imported module) of every import of our own, by whole names below `folder`."""
    for path in (ROOT / folder).rglob("*.py"):
        package = path.relative_to(ROOT).parent.parts
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                module = ".".join([*base, *filter(None, [node.module])])
                if node.module is None:  # from . import x: x is a module
                    yield from ((path, f"{module}.{x.name}") for x in node.names)
                else:
                    yield path, module
            elif isinstance(node, ast.ImportFrom):
                yield path, node.module or ""
            elif isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)


def test_programs_do_not_know_of_inference():
    for path, module in imports("ppl_models"):
        top, _, rest = module.partition(".")
        assert top != "inference", path
        assert top != "latentbits" or rest.startswith(("models", "_checkout")), path


def test_each_wing_imports_only_those_below_it():
    edges = set()
    for path, module in imports("inference"):
        parts = path.relative_to(ROOT / "inference").with_suffix("").parts
        wing, target = parts[0], module.split(".")
        assert target[0] != "ppl_models", f"{path}: by its installed name, latentbits.models"
        if target[0] != "inference" or wing not in WINGS:
            continue
        assert target[1] == wing or target[1] in WINGS[wing], f"{path} imports {module}"
        edges.add((wing, target[1]))
        if wing == "methods" == target[1] and len(parts) > 2 and target[2] in FAMILIES:
            allowed = FAMILIES[parts[1]] | {parts[1]}
            assert target[2] in allowed, f"{path} imports {module}"
    assert len(edges) > 20  # the imports were found


def test_numerics_is_mathematics_only():
    """It knows neither programs nor compilation."""
    for path, module in imports("inference/numerics"):
        assert module.partition(".")[0] != "numpyro", path


def test_no_public_name_is_a_module_too():
    import latentbits

    modules = {path.stem for path in (ROOT / "inference").iterdir()}
    assert not modules & set(latentbits.__all__)


def test_the_version_is_told_without_jax():
    program = """
import sys
from latentbits.inference.cli import main
try:
    main(["--version"])
except SystemExit:
    assert "jax" not in sys.modules and "numpy" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"latentbits {version('latentbits')}\n"


def test_metadata():
    about = metadata("latentbits")
    assert version("latentbits") == about["Version"]
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
