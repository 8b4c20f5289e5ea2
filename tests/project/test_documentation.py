"""What the README and the guides say is so: their Python runs, what they name exists."""

import re
import shlex
from pathlib import Path

import pytest

import ppl_models
from inference.cli import make_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDES = """choosing tables estimators programs trust scaling benchmarks papers notebooks glossary
maps"""
PAGES = {
    "README.md": README,
    "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(),
    **{f"docs/{name}.md": (ROOT / f"docs/{name}.md").read_text() for name in GUIDES.split()},
}
WORDS = "\n".join(PAGES.values())


def blocks(language, text=WORDS):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands():
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    parts = [part for line in lines for part in line.split(" && ")]
    return sorted({part for part in parts if "latentbits " in part})


def commands_in_text():
    """Those beside figures and in tables; one with dots or in parts stands for several."""
    prose = re.sub(r"^```.*?^```$", "", WORDS, flags=re.DOTALL | re.MULTILINE)
    quoted = [" ".join(command.split()) for command in re.findall(r"`(latentbits [^`]+)`", prose)]
    return sorted({command for command in quoted if "…" not in command and "MODEL" not in command})


def test_every_page_of_the_documentation_is_read_here():
    guides = {f"docs/{x.name}" for x in (ROOT / "docs").glob("*.md")}
    without = {"docs/index.md", "docs/api.md", "docs/contributing.md"}
    assert {*PAGES} == {"README.md", "CONTRIBUTING.md", *guides - without}


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "```python" in text])
def test_python_blocks_run_one_after_the_other(page):
    namespace = {}
    for block in blocks("python", PAGES[page]):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("command", commands())
def test_command_is_one_that_exists(command):
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/latentbits"
    make_parser().parse_args(arguments)


@pytest.mark.parametrize("command", commands_in_text())
def test_command_in_the_text_is_one_that_exists(command):
    arguments = shlex.split(command)[1:]
    if arguments[0] == "fit" and "--out" not in arguments:
        arguments += ["--out", "fit.nc"]
    make_parser().parse_args(arguments)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page):
    text = PAGES[page]
    below = (ROOT / page).parent
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        # The site has a copy of the notebooks, made when it is built.
        file = below / path if not path.startswith("notebooks/") else ROOT / path
        assert file.exists(), path
    ran = re.findall(r"python ((?:benchmarks|tests|notebooks)/\S+\.py)", text)
    named = re.findall(
        r"`((?:inference|ppl_models|tests|benchmarks|notebooks|\.ci)/[\w/.]+)`", text
    )
    for path in {*ran, *named}:
        assert (ROOT / path).exists(), path


def test_first_screen_holds_the_two_commands_that_set_everything_up():
    screen = "\n".join(README.splitlines()[:25])
    first, second, *_ = re.findall(r"^python3 -m venv .*$", screen, re.MULTILINE)
    assert ".venv/bin/latentbits " in first
    assert second.endswith(".venv/bin/pytest")


def test_every_program_is_named():
    section = re.search(r"^## The programs\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)[1]
    table = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(table) == sorted(ppl_models.__all__)


def test_every_notebook_is_named():
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"(notebooks/{notebook.name})" in PAGES["docs/notebooks.md"]


def test_ci_takes_the_test_command_from_here():
    pattern = re.search(r"grep -m 1 -E '(.*)' README.md", (ROOT / ".ci/run").read_text())[1]
    assert len(re.findall(pattern, README, re.MULTILINE)) == 1
