"""Run notebooks and keep what they say: `python notebooks/make.py [FILE.py …]`, by default all.

A notebook is written as a percent script, `N_name.py`, and read as `N_name.ipynb`, which is made
here from the script and nothing else. What changes from one run to the next without meaning
anything (identities of cells, times of execution, versions) is left out, so that a change in the
file is a change in what is said. Needs ``pip install -e '.[notebooks]'``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def scripts() -> list[Path]:
    """All notebooks, in reading order."""
    return sorted(
        FOLDER.glob("[0-9]*.py"), key=lambda path: int(path.stem.partition("_")[0])
    )


def cells(script: str) -> list[tuple[str, str]]:
    """Kind and source of each cell of a percent script."""
    import jupytext

    return [
        (x.cell_type, x.source) for x in jupytext.reads(script, fmt="py:percent").cells
    ]


def joined(outputs: list) -> list:
    """Lines printed one after another as one output: where they were flushed is random."""
    kept: list = []
    for one in outputs:
        if kept and one.get("name") == kept[-1].get("name") is not None:
            kept[-1]["text"] += one["text"]
        else:
            kept.append(one)
    return kept


def make(path: Path) -> Path:
    """Run a script as a notebook; nothing is written unless every cell runs."""
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    made = jupytext.read(path, fmt="py:percent")
    for number, cell in enumerate(made.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    made.metadata = nbformat.from_dict(METADATA)
    place = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(made, timeout=3600, record_timing=False, resources=place).execute()
    made.metadata = nbformat.from_dict(METADATA)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    target = path.with_suffix(".ipynb")
    nbformat.write(made, target)
    return target


if __name__ == "__main__":
    # What tqdm says of a missing widget, and ArviZ of its next version once a day,
    # is no part of what the notebook says.
    os.environ["PYTHONWARNINGS"] = (
        "ignore:IProgress not found,ignore::FutureWarning:arviz"
    )
    # As the commands do: loops that are unrolled take a fifth of the time to compile.
    unrolling = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling"
    os.environ.setdefault("XLA_FLAGS", unrolling)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = (
        "3"  # nor that a compilation is slow on a busy machine
    )
    for path in [Path(name) for name in sys.argv[1:]] or scripts():
        began = time.perf_counter()
        print(make(path), f"{time.perf_counter() - began:.0f} s")
