"""What is installed: one name of its own, whatever else is called `inference`."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The contents of the wheel, in a folder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_claims_one_name(installed):
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"latentbits"}
    inside = {path.name for path in (installed / "latentbits").iterdir()}
    assert {"inference", "models", "py.typed"} <= inside
    assert "_checkout.py" not in inside


def test_something_else_called_inference_does_no_harm(installed):
    rival = installed / "inference"
    rival.mkdir()
    (rival / "__init__.py").write_text("raise ImportError('this is not latentbits')\n")
    program = "import latentbits, sys; from latentbits.inference.cli import main; main(['list'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; print(latentbits.__file__)"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "TruncatedEM" in done.stdout
    assert str(installed) in done.stdout
