"""The page of a comparison: whole, the same again, true to its numbers, and fit to be looked at."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from legible import assert_legible
from made_comparisons import METHODS, PROGRAMS, made
from scipy import stats

from inference.cli import main
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
    assert "http" not in text.replace("http-equiv", "") and "@import" not in text
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
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', page.decode())
    assert page.count(b"<svg") == len(labels)
    assert all(len(label) > 20 for label in labels)


def test_every_number_of_the_verdict_links_to_a_row_that_has_it(page):
    parsed = Page(page)
    assert NUMBER.search(parsed.loose) is None
    rows = {x: " ".join([*cells, *parsed.rows.get(f"numbers-{x}", [])])
            for x, cells in parsed.rows.items()}  # fmt: skip
    numbers = [(href[1:], text) for href, text in parsed.said if NUMBER.fullmatch(text)]
    assert len(numbers) > 10
    estimates = re.findall(r"about <a[^>]*>([^<]*)</a> s more", page.decode())  # of what is left
    for anchor, text in numbers:
        assert anchor == "rules" or text in estimates or text in re.split(r"[\s()]+", rows[anchor])


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
    shown = ["row--b-", "row-SVI-flow", "row-DiscreteGibbs", "numbers-row--b-"]
    assert list(Page(own).rows) == shown


def cells(page, name):
    """What the cells of a method's row say, in order."""
    row = re.search(rf'<tr id="row-{name}".*?</tr>', page.decode(), flags=re.DOTALL).group()
    return [re.sub(r"<[^>]*>", "", x).strip() for x in re.findall(r"<td.*?</td>", row)]


def test_the_table_has_eight_columns_and_the_rest_is_folded(page):
    first, second = re.findall(r"<thead>.*?</thead>", page.decode(), flags=re.DOTALL)
    assert first.count("<th ") == 8
    assert page.index(b"<details>") < page.index(second.encode()) < page.index(b"</details>")
    assert "R̂" in second and "R̂" not in first


def test_time_against_error_stands_between_headline_and_table(page):
    places = [page.index(x) for x in (b'class="lead"', b"Accuracy against time", b"<table>")]
    assert places == sorted(places)
    assert page.count(b"Accuracy against time") == 1


def test_methods_are_in_the_order_in_which_their_scores_arrived():
    comparison = made()
    order = ["QuadratureEM", "NUTS", "MAP", "SVI-low_rank", "SVI-flow", "DiscreteGibbs"]
    assert list(Page(render(comparison)).rows)[:6] == [f"row-{x.replace('_', '-')}" for x in order]
    comparison.rows["NUTS"]["seconds_to_score"] = 0.01
    assert next(iter(Page(render(comparison)).rows)) == "row-NUTS"


def test_a_method_that_the_limit_ended_is_not_yet_and_its_time_is_a_lower_limit(page):
    score, seconds, behind, intervals, longer, *_ = cells(page, "NUTS")
    assert (score, seconds) == ("✓ arrived", "9.5 s")
    assert intervals.startswith("… not yet") and "267 of 400 effective draws" in intervals
    assert longer == "&gt; 120 s"
    assert "≤ 0.004" in behind  # the limit that decides
    late, never = cells(page, "MAP"), cells(page, "SVI-low-rank")
    assert late[:2] == ["… not yet about 0.02 nats per row left to gain", "&gt; 120 s"]
    assert late[3:5] == ["none", ""]
    assert never[0].startswith("✗ wrong") and never[1] == ""
    assert cells(page, "DiscreteGibbs")[:2] == ["… not yet", "&gt; 120 s"]
    assert b"fails its checks" not in page


def test_excess_takes_the_place_of_the_score_where_the_truth_is_known(page):
    assert b'">held out</a></th>' in page and b"nats from the truth" not in page
    comparison = made()
    for row in comparison.rows.values():
        row |= {"excess": 0.0123, "excess_error": 0.0011} if "behind" in row else {}
    known = render(comparison)
    main = known[: known.index(b"<details>")]
    assert b"nats from the truth" in main and b'">held out</a></th>' not in main
    assert "0.0123 ± 0.0011" in cells(known, "NUTS")


def test_the_mark_of_a_small_table_is_drawn_and_said(page):
    assert b"method is within 0.01 nats" in page
    comparison = made()
    comparison.about["mark"] = 0.034
    assert b"method is within 0.034 nats" in render(comparison)


def test_a_table_of_ones_own_begins_with_its_fit_and_what_to_take(page):
    assert b"Which method to take" not in page
    comparison = made()
    lines = ["model     latent_trait, QuadratureEM", "", "      bias", "a <b>  1"]
    reasons = ["Take QuadratureEM for estimates: its score arrived first, after 0.13 s."]
    comparison.about["recommended"] = {"method": "QuadratureEM", "reasons": reasons, "lines": lines}
    own = render(comparison)
    Page(own)
    assert b"<h1>latent_trait on made-up bits</h1>" in own and b"a &lt;b&gt;  1</pre>" in own
    parts = (b"model     latent_trait", b"Which method to take", b">QuadratureEM</a> for estimates",
             b"The comparison", b'class="lead"', b"<table>")  # fmt: skip
    assert [own.index(x) for x in parts] == sorted(own.index(x) for x in parts)
    comparison.about["recommended"] = {"method": "", "reasons": [], "lines": ["no fit    <why>"]}
    failed = render(comparison)
    assert b"no fit    &lt;why&gt;</pre>" in failed and b"Which method" not in failed


def test_a_comparison_that_nobody_finished_is_a_page():
    comparison = made(methods={})
    page = render(comparison)
    assert list(Page(page).rows) == ["row-SVI-flow", "row-DiscreteGibbs"]
    assert b"<details>" not in page and b"<svg" not in page


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
    assert np.isnan(again.rows["NUTS"]["rhat"])  # no number is a doubt as well
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


def test_of_each_side_the_figures_show_one_whose_score_arrived_or_may_arrive():
    comparison = made()
    assert chiefs(comparison) == ["QuadratureEM", "NUTS"]
    comparison.rows["NUTS"]["score"] = "WRONG"
    assert chiefs(comparison) == ["QuadratureEM", "MAP"]
    comparison.rows["MAP"]["score"] = "WRONG"
    assert chiefs(comparison) == ["QuadratureEM", "NUTS"]  # all are wrong: the best of them


def test_a_path_that_the_limit_ended_ends_in_an_arrow():
    comparison = made()
    for late in (True, False):
        with house_style():
            shown = next(general_pictures(comparison))
        arrows = [x for x in shown.figure.axes[0].lines if x.get_marker() == ">"]
        assert len(arrows) == late and ("arrow" in shown.words) == late
        comparison.rows["MAP"]["score"] = "ARRIVED"


def test_a_method_looks_alike_in_every_figure():
    comparison = made("clipped_gaussian")
    with house_style():
        shown = next(x for x in model_pictures(comparison) if x.title.startswith("Spectrum"))
    lines = {x.get_label(): x for x in shown.figure.axes[0].lines}
    for name, style in styles(comparison).items():
        assert lines[name].get_marker() == style["marker"]
        assert lines[name].get_color() == style["color"]
    many = made(methods={f"method {i}": (True, "point", 0.0, {}) for i in range(14)})
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
