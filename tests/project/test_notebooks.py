"""The committed outputs of every notebook are its own, whole and small.

`python notebooks/make.py` makes the outputs anew; `tests/papers/test_papers.py` runs every cell.
"""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
sys.path.append(str(FOLDER))

from make import cells, scripts  # noqa: E402

MOST_BYTES = 400_000
A_PATH = re.compile(r"(?<![\w.:/])/(home|root|tmp|usr|opt|var|mnt|work|Users|private)/|[A-Z]:\\\\")
each = pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)


def outputs(path):
    notebook = json.loads(path.with_suffix(".ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [output for cell in code for output in cell["outputs"]]


def words(output):
    """What can be read of an output: pictures are left out."""
    shown = output.get("data", {})
    parts = [output.get("text", ""), *(x for kind, x in shown.items() if "image/" not in kind)]
    return "".join(part if isinstance(part, str) else "".join(part) for part in parts)


def test_every_script_has_its_notebook_and_no_notebook_is_left_over():
    assert sorted(path.stem for path in scripts()) == sorted(x.stem for x in FOLDER.glob("*.ipynb"))
    assert scripts()


@each
def test_pair_has_the_same_ten_cells_and_a_last_one(path):
    notebook = json.loads(path.with_suffix(".ipynb").read_text())
    paired = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert paired == cells(path.read_text())
    # Five steps of text and code, and what to take home.
    assert [kind for kind, _ in paired] == ["markdown", "code"] * 5 + ["markdown"]


@each
def test_outputs_are_there_small_and_without_a_trace_of_a_machine(path):
    file = path.with_suffix(".ipynb")
    assert file.stat().st_size < MOST_BYTES
    notebook = json.loads(file.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    shown = outputs(path)
    assert shown
    for output in shown:
        assert output["output_type"] != "error" and output.get("name") != "stderr", words(output)
        assert not A_PATH.search(words(output)), words(output)


@each
def test_code_fits_a_page(path):
    """Nothing is cut at 1200 pixels."""
    code = [source for kind, source in cells(path.read_text()) if kind == "code"]
    assert [x for source in code for x in source.splitlines() if len(x) > 88] == []


def test_local_paths_are_detected_but_not_urls_or_fractions():
    assert A_PATH.search("saved in /home/me/file.nc") and A_PATH.search("'/tmp/x'")
    assert not A_PATH.search("1/tmp/2, https://x.org/home/y, ./tmp/z")


OURS = {"latentbits", "latentbits.models", "latentbits.models.data"}
OTHERS = {"arviz", "jax", "matplotlib", "numpy", "numpyro", "scipy", "beyond"}
"""`beyond` is the folder of a checkout, in `benchmarks`, where the notebook finds experiments."""


@each
def test_notebooks_import_public_names_only(path):
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [x.name for x in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            top = module.partition(".")[0]
            assert module in OURS or top in OTHERS or top in sys.stdlib_module_names, module
