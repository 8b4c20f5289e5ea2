"""The package as a whole: what lies at the top, what importing it costs, which way imports run."""

import ast
import json
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

ROOT = Path(__file__).parent.parent
MADE_BY_TOOLS = {"build", "dist", "latentbits.egg-info", "__pycache__"}


def test_top_level_holds_what_it_should_and_nothing_else():
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    wanted = "pyproject.toml README.md LICENSE ppl_models inference tests notebooks"
    assert found - MADE_BY_TOOLS == set(wanted.split())


def test_importing_the_core_is_light():
    """Nothing that a report or a data set needs is loaded, and no device is touched."""
    program = """
import json, sys
import inference, inference.cli, ppl_models, ppl_models.data
from jax._src import xla_bridge
heavy = ("arviz", "matplotlib", "sklearn", "mlxtend", "funsor", "pandas", "xarray", "h5py", "optax")
print(json.dumps([[name for name in heavy if name in sys.modules], list(xla_bridge._backends)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[], []]


def test_programs_do_not_know_of_inference():
    for path in (ROOT / "ppl_models").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: import by the full name"
                names = [node.module or ""]
            assert all(name.partition(".")[0] != "inference" for name in names), path


def test_the_core_does_not_know_of_studies_or_the_command_line():
    above = ("inference.studies", "inference.cli")
    for path in (ROOT / "inference").rglob("*.py"):
        inside = path.relative_to(ROOT / "inference")
        if inside.parts[0] in ("studies", "cli.py", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith(above), path


def test_metadata():
    about = metadata("latentbits")
    assert version("latentbits") == about["Version"]
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
