"""The API pages: every module's docstrings as HTML, made without network.

    pip install -e '.[docs]' && python .docs/make.py

pdoc lays the pages out; docutils reads the docstrings, which are reStructuredText with tables and
LaTeX, and writes their formulas as MathML, so that the pages load nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import pdoc
import pdoc.render
from docutils import nodes
from docutils.core import publish_doctree, publish_parts
from docutils.frontend import Values, get_default_settings
from docutils.io import DocTreeInput
from docutils.parsers.rst import Parser, roles
from docutils.readers.standalone import Reader
from docutils.writers.html5_polyglot import Writer
from markupsafe import Markup

PACKAGES = ("latentbits.models", "latentbits.inference")
SETTINGS = {
    "math_output": "MathML",
    "report_level": 5,  # what it cannot read stays as it was written
    "file_insertion_enabled": False,
    "raw_enabled": False,
}
STYLE = """<style>
.docstring :is(th, td) p {margin: 0}
.docstring dl.field-list {display: grid; grid-template-columns: max-content 1fr; gap: .2em 1em}
.docstring dl.field-list :is(dt, dd, dd p) {margin: 0}
</style>"""


def keep_columns(text: str) -> str:
    """Mark indented paragraphs as literal: they are small tables, or commands."""
    parts = re.split(r"\n(?:[ ]*\n)+", text)
    kept = parts[:1]
    for before, part in pairwise(parts):
        plain = not before.startswith((" ", "..", ":", "-", "*")) and not before.endswith("::")
        if plain and all(line.startswith("  ") for line in part.splitlines()):
            kept.append("::")
        kept.append(part)
    return "\n\n".join(kept)


@functools.cache
def settings() -> Values:
    """All settings of docutils: to gather them takes longer than to read a docstring."""
    found = get_default_settings(Parser, Reader, Writer)
    vars(found).update(SETTINGS)
    return found


@functools.cache  # many docstrings are inherited
def to_html(docstring: str) -> Markup:
    """A docstring as HTML. Single and double backticks are code, which pdoc turns into links."""
    if re.match(r"Alias for field number|Create new instance of", docstring):
        return Markup()  # Python wrote that of a named tuple
    text = keep_columns(inspect.cleandoc(docstring))
    tree = publish_doctree(text, settings=settings().copy())
    for node in [*tree.findall(nodes.title_reference), *tree.findall(nodes.literal)]:
        node.replace_self(nodes.literal("", node.astext(), classes=["code"]))
    for node in tree.findall(nodes.field_name):
        node[:] = [nodes.Text(node.astext().removeprefix("param "))]
    parts = publish_parts(
        tree,
        source_class=DocTreeInput,
        reader="doctree",
        writer="html5",
        settings=settings().copy(),
    )
    return Markup(parts["body"])


def as_code(name, rawtext, text, lineno, inliner, options=None, content=()):  # noqa: ARG001
    """A role such as :func:`name`, with the arguments that docutils gives it."""
    return [nodes.literal(rawtext, text)], []


def modules() -> list[str]:
    """Both packages and all modules in them; pdoc by itself takes those of ``__all__`` alone."""
    found = list(PACKAGES)
    for package in PACKAGES:
        whole = importlib.import_module(package)
        # Names that load when they are first used must be there for pdoc, which does not ask.
        vars(whole).update({name: getattr(whole, name) for name in whole.__all__})
        vars(whole)["__all__"] = whole.__all__
        path = whole.__path__
        found += [module.name for module in pkgutil.walk_packages(path, f"{package}.")]
    return [name for name in found if not name.endswith("__main__")]


def contents(pages: list[Path]) -> str:
    """A line for each page, for the first one."""
    lines = []
    for page in pages:
        name = ".".join(page.with_suffix("").parts)
        summary = (sys.modules[name].__doc__ or "").partition("\n\n")[0]
        link = f'<a href="{page.as_posix()}">{name}</a>'
        lines.append(f"<tr><td>{link}</td><td>{to_html(summary)}</td></tr>")
    return f'<div class="docstring"><h1>latentbits</h1><table>{"".join(lines)}</table></div>'


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the API pages.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "html")
    out = parser.parse_args().out
    # Fields of a dataclass are annotated in words that pdoc looks for in the wrong module.
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    warnings.filterwarnings("ignore", "The module specification .* has already been added")
    for role in ("func", "class", "meth", "mod", "data", "attr"):
        roles.register_local_role(role, as_code)
    pdoc.render.env.filters["to_markdown"] = lambda docstring: docstring
    pdoc.render.env.filters["to_html"] = to_html
    pdoc.render.configure(footer_text="latentbits", search=False)
    pdoc.pdoc(*modules(), output_directory=out)
    pages = [page.relative_to(out) for page in out.rglob("*.html")]
    pages.remove(Path("index.html"))
    names = {page: page.with_suffix("").parts for page in pages}
    pages.sort(key=lambda page: (names[page][:2] != ("latentbits", "models"), names[page]))
    for page in pages:
        file = out / page
        file.write_text(file.read_text().replace("</head>", f"{STYLE}</head>", 1))
    index = out / "index.html"
    text = index.read_text().replace("</head>", f"{STYLE}</head>", 1)
    index.write_text(text.replace("</main>", f"{contents(pages)}</main>", 1))
    print(f"pages     {out / 'index.html'}")


if __name__ == "__main__":
    main()
