"""What the README says is so: its Python runs, its commands, files and pictures exist."""

import re
import shlex
from pathlib import Path

import pytest

import ppl_models
from inference.cli import make_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands():
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    parts = [part for line in lines for part in line.split(" && ")]
    return [part for part in parts if "latentbits " in part]


def commands_in_text():
    """Those beside figures and in tables; one with dots or in parts stands for several."""
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.DOTALL | re.MULTILINE)
    found = [" ".join(command.split()) for command in re.findall(r"`(latentbits [^`]+)`", prose)]
    return sorted({command for command in found if "…" not in command and "MODEL" not in command})


def test_python_blocks_run_one_after_the_other():
    found = blocks("python")
    assert len(found) >= 4
    namespace = {}
    for block in found:
        exec(compile(block, "README.md", "exec"), namespace)


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


def test_files_that_are_named_are_there():
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    ran = re.findall(r"python ((?:tests|notebooks|\.docs)/\S+\.py)", README)
    named = re.findall(r"`((?:inference|ppl_models|tests|notebooks|\.ci)/[\w/.]+)`", README)
    assert len(linked) >= 9
    assert ran
    assert named
    for path in {*linked, *ran, *named}:
        assert (ROOT / path).exists(), path


def test_first_screen_holds_the_two_commands_that_set_everything_up():
    screen = "\n".join(README.splitlines()[:25])
    first, second, *_ = re.findall(r"^python3 -m venv .*$", screen, re.MULTILINE)
    assert ".venv/bin/latentbits " in first
    assert second.endswith(".venv/bin/pytest")


def test_every_program_is_named():
    section = re.search(r"^## What there is\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)[1]
    table = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(table) == sorted(ppl_models.__all__)


def test_every_notebook_is_named():
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"(notebooks/{notebook.name})" in README


def test_headings_are_where_links_say():
    headings = {
        re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^## (.*)$", README, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= headings


def test_ci_takes_the_test_command_from_here():
    pattern = re.search(r"grep -m 1 -E '(.*)' README.md", (ROOT / ".ci/run").read_text())[1]
    assert len(re.findall(pattern, README, re.MULTILINE)) == 1
