"""The page of a comparison: whole, the same again, true to its numbers, and fit to be looked at."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from legible import assert_legible
from made_comparisons import METHODS, PROGRAMS, made
from scipy import stats

from inference.cli import main
from inference.comparison.checks import doubts
from inference.comparison.files import load_comparison, save_comparison
from inference.comparison.report.figures import (
    as_svg,
    chiefs,
    general_pictures,
    model_pictures,
    places,
    styles,
)
from inference.comparison.report.page import NUMBER, linked, render
from inference.comparison.verdict import lines, summary
from inference.files.cards import CARDS
from inference.files.figures import house_style


class Page(HTMLParser):
    """What a page holds; it fails at the first tag that is not closed in its turn."""

    EMPTY = frozenset(("meta", "br"))

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.attrs = [], [], [], set(), []
        self.row, self.rows, self.said, self.loose = None, {}, [], ""
        self.feed(page.decode())
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        self.attrs += attrs.items()
        if tag not in self.EMPTY:
            self.open.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a":
            self.links.append(attrs["href"])
        if tag == "tr" and "id" in attrs:
            self.row = self.rows.setdefault(attrs["id"], [])

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "tr":
            self.row = None

    def handle_data(self, data):
        if self.row is not None:
            self.row.append(data)
        if "li" in self.open:
            if "a" in self.open:
                self.said.append((self.links[-1], data))
            else:
                self.loose += data


# the page


@pytest.fixture(scope="module")
def page():
    return render(made())


def test_a_page_is_whole_and_small(page):
    parsed = Page(page)
    text = page.decode()
    assert len(page) < 1_000_000
    assert "http" not in text and "@import" not in text
    assert not parsed.tags & {"script", "link", "iframe", "object"}
    outside = [v for k, v in parsed.attrs if k in ("src", "href", "xlink:href")]
    assert all(v.startswith(("#", "data:image/png;base64,")) for v in outside)


def test_names_are_unique_and_links_lead_somewhere(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    inside = {v[1:] for k, v in parsed.attrs if k in ("href", "xlink:href") and v.startswith("#")}
    inside |= set(re.findall(r"url\(#([^)]*)\)", page.decode()))
    assert inside and inside <= set(parsed.ids)


def test_every_figure_has_words_for_those_who_cannot_see_it(page):
    labels = [v for k, v in Page(page).attrs if k == "aria-label"]
    assert page.decode().count("<svg") == page.decode().count('<svg role="img" aria-label="')
    assert all(len(label) > 20 for label in labels if label != "results")


def test_every_number_of_the_verdict_links_to_a_row_that_has_it(page):
    parsed = Page(page)
    assert NUMBER.search(parsed.loose) is None
    rows = {anchor: " ".join(cells) for anchor, cells in parsed.rows.items()}
    numbers = [(href[1:], text) for href, text in parsed.said if NUMBER.fullmatch(text)]
    assert len(numbers) > 10
    for anchor, text in numbers:
        assert anchor == "rules" or text in rows[anchor].split() or "SVI-flow" in anchor


def test_numbers_link_to_the_method_named_last():
    words = linked("A b is 2.5 times as fast as C, by -1e-3 and 40%", ["A b", "C"])
    assert re.findall(r'"#([^"]*)">([^<]*)<', words) == [
        ("row-A-b", "A b"), ("row-A-b", "2.5"), ("row-C", "C"), ("row-C", "-1e-3"),
        ("row-C", "40%"),
    ]  # fmt: skip
    assert linked("No method finished.", []) == "No method finished."


def test_what_failed_is_a_row_and_nothing_is_taken_for_markup(page):
    assert b"failed after 3 s: &lt;no&gt; memory &amp; time" in page
    own = render(made("my<module>:f", {"<b>": METHODS["MAP"]}, known=False))
    assert b"<module>" not in own and b"<b>&lt;" not in own and b"<b>:" not in own
    assert list(Page(own).rows) == ["row--b-", "row-SVI-flow"]


def test_a_method_that_the_budget_ended_is_not_finished_in_every_output():
    late = {"rhat": 1.02, "ess_bulk": 310.0, "divergences": 0, "status": "out of budget"}
    comparison = made(methods={"QuadratureEM": METHODS["QuadratureEM"],
                               "NUTS": (False, "sampler", late)})  # fmt: skip
    comparison.rows["QuadratureEM"].update(standing="PASSES", starts=2)
    row = Page(render(comparison)).rows["row-NUTS"]
    assert "not finished" in row and "no" not in row
    told = summary(comparison)
    assert told["methods"]["NUTS"]["standing"] == "NOT_FINISHED"
    for words in (told["headline"], told["verdict"]["NUTS"], *lines(comparison)):
        assert "Only" not in words and "No generic" not in words
        assert "NUTS" not in words or "not finished" in words.lower() or "budget" in words


def test_a_comparison_that_nobody_finished_is_a_page():
    comparison = made(methods={})
    assert b"No method finished" in render(comparison)
    Page(render(comparison))


# saved results


def test_a_saved_comparison_makes_the_same_page(tmp_path, capsys, page):
    save_comparison(made(), tmp_path / "result.nc")
    assert main(["report", str(tmp_path / "result.nc")]) == 0
    assert capsys.readouterr().out == f"report    {tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").read_bytes() == page


def test_what_was_saved_comes_back(tmp_path):
    comparison = made("noisy_or_network")
    comparison.rows["NUTS"]["rhat"] = float("nan")
    save_comparison(comparison, tmp_path / "result.nc")
    again = load_comparison(tmp_path / "result.nc")
    # No number is a doubt as well.
    assert doubts(again.rows["NUTS"]) == doubts(comparison.rows["NUTS"])
    for wanted, back in (
        (comparison.table, again.table),
        (comparison.truth, again.truth),
        (comparison.params["MAP"], again.params["MAP"]),
    ):
        assert wanted.keys() == back.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(back[name], value)


def test_report_says_what_is_wrong(tmp_path, capsys):
    other = tmp_path / "other.nc"
    other.write_text("no netCDF")
    save_comparison(made(), tmp_path / "result.nc")
    for arguments, words in (
        ([tmp_path / "none.nc"], "there is no such file"),
        ([other], "is no netCDF file"),
        ([tmp_path / "result.nc", "--out", tmp_path / "no" / "x.html"], "there is no folder"),
        ([tmp_path / "result.nc", "--out", tmp_path / "x.pdf"], "must end in .html"),
    ):
        assert main(["report", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


# figures


OF_ALL = ["Accuracy against time", "Behind the best", "Calibration", "Parameters beside the truth"]
OWN = {
    "latent_trait": ["Map by QuadratureEM", "Map by NUTS"],
    "clipped_gaussian": ["Map by QuadratureEM", "Map by NUTS", "Spectrum of the correlations",
                         "Morph by QuadratureEM"],
    "graded_trait": [],
    "categorical_mixture": [],
    "trait_mixture": [],
    "mixed_trait": ["Map by QuadratureEM", "Map by NUTS"],
    "binary_sparse_coding": ["Basis functions"],
    "sparse_coding": ["Basis functions"],
    "bernoulli_mixture": ["Patterns"],
    "bernoulli_product": [],
    "combination_machine": ["Weights of the hidden units"],
    "real_combination_machine": ["Weights of the hidden units"],
    "noisy_or_network": ["Layer 1: what its units turn on", "Layer 2: what its units turn on"],
    "mine:model": [],
}  # fmt: skip


@pytest.mark.parametrize("model", OWN)
def test_each_program_has_the_figures_of_its_paper(model):
    assert CARDS.keys() <= OWN.keys()
    comparison = made(model)
    with house_style():
        own = list(model_pictures(comparison))
    assert [one.title for one in own] == OWN[model]
    for one in own:
        assert_legible(one.figure, one.title)


def test_many_methods_with_long_names_are_legible():
    many = {f"{name} {'again and ' * (i % 2)}{i}": METHODS[name] for i in range(4)
            for name in METHODS}  # fmt: skip
    comparison = made("latent_trait", many, rows=500)
    with house_style():
        shown = [*general_pictures(comparison), *model_pictures(comparison)]
    assert [one.title for one in shown[:4]] == OF_ALL
    for one in shown[:5]:
        assert_legible(one.figure, one.title)
    assert 2 * len(as_svg(shown[4], "")) < 1_200_000  # maps are most of a page


def test_one_estimate_far_off_does_not_press_the_others_together():
    comparison = made("clipped_gaussian")
    for far in (False, True):
        if far:
            comparison.params["NUTS"]["weights"][0, 1] = -500.0
        with house_style():
            shown = next(x for x in general_pictures(comparison) if x.title == OF_ALL[3])
        assert ("Triangles" in shown.words) == far
        low, high = shown.figure.axes[0].get_ylim()
        assert np.ptp(comparison.truth["weights"]) < high - low < 20


def test_one_not_to_be_trusted_gives_way_to_its_equal():
    comparison = made()
    assert chiefs(comparison) == ["QuadratureEM", "NUTS"]  # which diverges
    comparison.rows["MAP"]["as_good"] = True
    assert chiefs(comparison) == ["QuadratureEM", "MAP"]


def test_a_method_looks_alike_in_every_figure():
    comparison = made("clipped_gaussian")
    with house_style():
        shown = next(x for x in model_pictures(comparison) if x.title.startswith("Spectrum"))
    lines = {x.get_label(): x for x in shown.figure.axes[0].lines}
    for name, style in styles(comparison).items():
        assert lines[name].get_marker() == style["marker"]
        assert lines[name].get_color() == style["color"]
    many = made(methods={f"method {i}": (True, "point", {}) for i in range(14)})
    assert len({x["color"] for x in styles(many).values()}) == 14


def test_real_columns_are_not_called_bits():
    words = {x: next(model_pictures(made(x))).words for x in OWN if x.endswith("tion_machine")}
    assert "towards 1" in words["combination_machine"]
    assert "bit" not in words["real_combination_machine"]


@pytest.mark.parametrize("model", ["latent_trait", "clipped_gaussian", "mixed_trait"])
def test_rows_lie_where_integration_puts_them(model):
    comparison = made(model)
    params, sizes, _ = PROGRAMS[model]
    comparison.params["MAP"] = params
    row = int(np.flatnonzero(~comparison.table["mask"].all(1))[0])  # one with a hole
    values, seen = comparison.table["values"][row], comparison.table["mask"][row]

    def density(y, x):
        predictor = np.array([x, y]) @ params["weights"] + params["bias"]
        total = stats.norm.pdf(x) * stats.norm.pdf(y)
        if model == "mixed_trait":  # predictors by kind: real, two bits, two of the three levels
            levels = np.exp(np.array([0.0, *predictor[3:]]))
            cells = [stats.norm.pdf(values[0], predictor[0], params["noise"][0]),
                     (levels / levels.sum())[int(values[1])],
                     *(1 / (1 + np.exp(-s * p)) for s, p in
                       zip(2 * values[2:] - 1, predictor[1:3], strict=True))]  # fmt: skip
        elif model == "clipped_gaussian":
            cells = stats.norm.cdf((2 * values - 1) * predictor / sizes["noise"])
        else:
            cells = 1 / (1 + np.exp(-(2 * values - 1) * predictor))
        return total * np.prod(np.asarray(cells)[seen])

    # A rule of its own: 40 nodes of Gauss and Legendre in each direction.
    nodes, weights = np.polynomial.legendre.leggauss(40)
    grid = 6.0 * nodes
    table = np.array([[density(y, x) for y in grid] for x in grid]) * np.outer(weights, weights)
    table = table / table.sum()
    mean = np.array([table.sum(1) @ grid, table.sum(0) @ grid])
    square = np.array([table.sum(1) @ grid**2, table.sum(0) @ grid**2])
    found = places(comparison, "MAP")
    np.testing.assert_allclose(found.mean[row], mean, atol=2e-4)
    np.testing.assert_allclose(np.diagonal(found.covariance[row]), square - mean**2, atol=5e-4)
