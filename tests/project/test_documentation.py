"""What the README and the guides say is so: their Python runs, what they name exists."""

import json
import re
import shlex
from pathlib import Path

import pytest

import ppl_models
from inference.cli import COMMANDS, main, make_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MADE = {"api", "commands", "verdict"}  # by docs/conf.py
GUIDES = sorted(x for x in (ROOT / "docs").glob("*.md") if x.stem not in MADE)
PAGES = {x: (ROOT / x).read_text() for x in ("README.md", "CONTRIBUTING.md")}
PAGES |= {f"docs/{x.name}": x.read_text() for x in GUIDES}
WORDS = "\n".join(PAGES.values())
CODE = re.compile(r"^```(\w*|{[^}\n]*}[^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(language, text=WORDS):
    return [block for name, block in CODE.findall(text) if name == language]


def prose(text):
    """What a person wrote to be read: no code, no tables, no addresses."""
    text = CODE.sub("", text)
    text = re.sub(r"^(\||!\[|\(\w+\)=).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def commands():
    lines = [x for block in blocks("sh") for x in block.replace("\\\n", " ").splitlines()]
    parts = [part for line in lines for part in line.split(" && ")]
    return sorted({part for part in parts if "latentbits " in part})


def commands_in_text():
    """Those beside figures and in tables; one with dots or in parts stands for several."""
    text = CODE.sub("", WORDS)
    quoted = [" ".join(command.split()) for command in re.findall(r"`(latentbits [^`]+)`", text)]
    return sorted({command for command in quoted if "…" not in command and "MODEL" not in command})


def masked(text):
    """Words without numbers, whose last digits differ from machine to machine."""
    return " ".join(re.sub(r"[-−+]?\d[\d.e+-]*", "0", text).split())


@pytest.mark.parametrize("page", [x for x, text in PAGES.items() if "```python" in text])
def test_code_and_commands_of_a_page_run_and_print_what_it_shows(
    page, tmp_path, monkeypatch, capsys
):
    """Python, then ``console`` blocks, a command with what it prints; a ``text`` block after Python
    is what that prints. "…" stands for what is left out."""
    monkeypatch.chdir(tmp_path)
    namespace, before, printed = {}, "", ""
    for language, block in CODE.findall(PAGES[page]):
        shown = None
        if language == "python":
            exec(compile(block, page, "exec"), namespace)
        elif language == "console":
            command, shown = block.replace("\\\n", " ").split("\n", 1)
            assert command.startswith("$ latentbits "), command
            assert main(shlex.split(command)[2:]) == 0
        elif language == "text" and before == "python":
            shown = block
        if language != "text":
            printed = masked(capsys.readouterr().out)
        rest = printed
        for part in filter(None, map(str.strip, masked(shown or "").split("…"))):
            assert part in rest, (page, part)
            rest = rest.partition(part)[2]
        before = language


def test_prose_is_short():
    """All pages for users in 14 000 words, no sentence over thirty."""
    pages = [text for page, text in PAGES.items() if page != "CONTRIBUTING.md"]
    assert sum(len(CODE.sub("", text).split()) for text in pages) <= 14_000
    texts = map(prose, pages)
    sentences = [x for text in texts for x in re.split(r"[.?!:]\s|\n\n|\n *[-#:] ", text)]
    assert [x for x in sentences if len(x.split()) > 30] == []


def test_code_fits_a_page():
    """Nothing is cut at 1200 pixels. The README's commands stand on one line each."""
    kept = [(page, name, x) for page, text in PAGES.items() for name, x in CODE.findall(text)]
    lines = [(page, line) for page, name, x in kept if name != "bibtex" for line in x.splitlines()]
    assert [x for x in lines if len(x[1]) > 88 and ".venv/bin/" not in x[1]] == []


@pytest.mark.parametrize("command", commands())
def test_command_is_one_that_exists(command):
    program, *arguments = shlex.split(command)
    assert program in {"latentbits", ".venv/bin/latentbits"}
    make_parser().parse_args(arguments)


@pytest.mark.parametrize("command", commands_in_text())
def test_command_in_the_text_is_one_that_exists(command):
    arguments = shlex.split(command)[1:]
    if arguments in [[name] for name in COMMANDS]:
        return
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
        assert file.exists() or file.stem in MADE, path
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
    section = re.search(r"^## The programs\n(.*)", README, re.DOTALL | re.MULTILINE)[1]
    table = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(table) == sorted(ppl_models.__all__)


def test_every_notebook_is_named():
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"(notebooks/{notebook.name})" in PAGES["docs/notebooks.md"]


def test_ci_takes_the_test_command_from_here():
    pattern = re.search(r"grep -m 1 -E '(.*)' README.md", (ROOT / ".ci/run").read_text())[1]
    assert len(re.findall(pattern, README, re.MULTILINE)) == 1


def test_the_example_of_a_command_is_what_it_prints(tmp_path, monkeypatch):
    """Of those that take seconds; `python docs/examples.py` makes all of them anew."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    import examples

    kept = json.loads(examples.FILE.read_text())
    assert set(kept) == set(examples.EXAMPLES) == set(COMMANDS)
    examples.prepare()
    for name, lines in examples.EXAMPLES.items():
        if name not in examples.SLOW:
            assert masked(examples.run(lines)) == masked(kept[name]), name
