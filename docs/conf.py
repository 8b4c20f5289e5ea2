"""The documentation: pages in Markdown, notebooks as they were run, API pages from docstrings.

    pip install -e '.[docs]' && sphinx-build -W -b html docs docs/_build/html

needs no network, and what it writes loads nothing from elsewhere: formulas are MathML.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shutil
from itertools import pairwise
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from latentbits.inference.cli import COMMANDS, make_parser
from latentbits.inference.comparison.checks import RULES
from numpyro.infer.mcmc import MCMCKernel
from sphinx.addnodes import pending_xref

import latentbits
from latentbits import models

HERE = Path(__file__).parent

project, author, copyright = "latentbits", "the latentbits authors", "the latentbits authors"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode", "myst_nb"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
html_theme, html_title = "furo", "latentbits"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_math_renderer = "mathml"
nb_execution_mode = "off"  # outputs are those that were committed
nb_render_markdown_format = "myst"  # by default tables of an output are shown as lines of text
myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "dollarmath"]
default_role = "py:obj"  # `EM` in a docstring is a link where there is something to link to
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# scikit-learn adds that method to estimators that take sample_weight, and links to its own pages.
autodoc_default_options = {
    "members": True, "undoc-members": False, "exclude-members": "set_fit_request",
}  # fmt: skip
# Notebooks show their own headings; those of the report in an output are not ours.
suppress_warnings = ["mystnb.unknown_mime_type"]


def is_method(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, latentbits.Algorithm | MCMCKernel)


def write_api() -> None:
    """The page that lists every public name, in three groups."""
    methods = [name for name in latentbits.__all__ if is_method(getattr(latentbits, name))]
    rest = [name for name in latentbits.__all__ if name not in methods]
    groups = {
        "Programs": [f"latentbits.models.{name}" for name in models.__all__],
        "Methods": [f"latentbits.{name}" for name in methods],
        "Readings, results and evaluation": [f"latentbits.{name}" for name in rest],
    }
    lines = ["# API", ""]
    for title, names in groups.items():
        listed = "\n".join(f"   {name}" for name in names)
        lines += [f"## {title}", "", "```{eval-rst}", ".. autosummary::", "   :toctree: api"]
        lines += ["   :nosignatures:", ""]
        lines += [listed, "```", ""]
    (HERE / "api.md").write_text("\n".join(lines))


def write_commands() -> None:
    """The page of every command with its options, as `latentbits COMMAND --help` prints them, with
    an example; and the rules by which a comparison judges."""
    os.environ["COLUMNS"] = "88"
    examples = json.loads((HERE / "examples.json").read_text())
    lines = ["# Commands", "", "What `latentbits COMMAND --help` prints, and an example.", ""]
    lines += ["`answers.csv` holds 300 rows of six answers, 0 or 1; in `holes.csv` one is missing. "
              "Examples use the files of those before.", ""]  # fmt: skip
    for name in COMMANDS:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            make_parser([name]).parse_args([name, "--help"])
        lines += [f"## {name}", "", "```text", shown.getvalue().rstrip(), "```", ""]
        lines += ["```console", examples[name].rstrip(), "```", ""]
    (HERE / "commands.md").write_text("\n".join(lines))
    title = "# The rules of the verdict"
    (HERE / "verdict.md").write_text(f"{title}\n\n```text\n{RULES.rstrip()}\n```\n")


def copy_notebooks() -> None:
    """Sphinx reads what lies below its own folder only; there the guides are one folder up."""
    target = HERE / "notebooks"
    target.mkdir(exist_ok=True)
    for file in (HERE.parent / "notebooks").glob("*.ipynb"):
        text = file.read_text().replace("](../docs/", "](../")
        (target / file.name).write_text(text)
    shutil.copytree(HERE.parent / "notebooks/pictures", target / "pictures", dirs_exist_ok=True)


def keep_columns(app, what, name, thing, options, lines):  # noqa: ARG001
    """Mark indented paragraphs of a docstring as literal: they are small tables, or commands."""
    parts = re.split(r"\n(?:[ ]*\n)+", "\n".join(lines))
    kept = parts[:1]
    for before, part in pairwise(parts):
        plain = not before.startswith((" ", "..", ":", "-", "*", ">>>")) and not before.endswith(
            "::"
        )
        if plain and all(line.startswith("  ") for line in part.splitlines()):
            kept.append("::")
        kept.append(part)
    lines[:] = "\n\n".join(kept).splitlines()


def link_names(app, doctree):
    """Where a page or a notebook names what the API has, `EM` say, the name is a link to it."""
    places = {name: f"latentbits.{name}" for name in latentbits.__all__}
    places |= {name: f"latentbits.models.{name}" for name in models.__all__}
    taken = (nodes.reference, nodes.title, pending_xref)
    for node in list(doctree.findall(nodes.literal)):
        name = node.astext()
        if name in places and not isinstance(node.parent, taken):
            to = {"refdomain": "py", "reftype": "obj", "reftarget": places[name]}
            node.replace_self(pending_xref("", node.deepcopy(), refdoc=app.env.docname, **to))


def own_signature(app, what, name, thing, options, signature, result):  # noqa: ARG001
    """That of a method's `__init__`: `__new__`, which only checks, takes anything."""
    if what == "class" and issubclass(thing, latentbits.Algorithm):
        parameters = [*inspect.signature(thing.__init__).parameters.values()][1:]
        return str(inspect.Signature(parameters)), result
    return None


# Commands that docutils does not know, and what stands for them.
SPELT = {r"\dots": r"\ldots ", "…": r"\ldots ", r"\Big": "", r"\big": "", r"\textstyle": ""}

SHORT = re.compile(r"\\[td]?frac *([0-9A-Za-z]) *([0-9A-Za-z]|\\[A-Za-z]+)")
"""A fraction without braces, of which docutils takes 12 for one number."""


def formula(translator, node, *, block):
    """LaTeX as MathML, which browsers show without a script."""
    text = node.astext()
    for name, other in SPELT.items():
        text = text.replace(name, other)
    text = SHORT.sub(r"\\frac{\1}{\2}", text)
    if block and ("&" in text or r"\\" in text):
        text = f"\\begin{{aligned}}{text}\\end{{aligned}}"
    shown = tex2mathml(text, as_block=block)
    shown = re.sub("<mo[^>]*>([{}])</mo>", r'<mo stretchy="false">\1</mo>', shown)
    # Browsers drop spaces at the ends of a text.
    shown = re.sub("<mtext>.*?</mtext>", lambda words: words[0].replace(" ", "\u00a0"), shown)
    translator.body.append(f'<div class="formula">{shown}</div>' if block else shown)
    raise nodes.SkipNode


def setup(app):
    write_api()
    write_commands()
    copy_notebooks()
    app.connect("autodoc-process-docstring", keep_columns)
    app.connect("autodoc-process-signature", own_signature)
    app.connect("doctree-read", link_names)
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: formula(self, node, block=False), None),
        (lambda self, node: formula(self, node, block=True), None),
    )
