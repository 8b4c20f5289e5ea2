"""The page of a comparison: whole, the same again, true to its numbers, and fit to be looked at."""

import io
import os
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from legible import assert_legible
from playwright.sync_api import sync_playwright
from scipy import stats

from inference.cli import main
from inference.studies.cards import CARDS
from inference.studies.comparison.compare import Comparison
from inference.studies.comparison.files import load_comparison, save_comparison
from inference.studies.comparison.verdict import doubts, settle
from inference.studies.figures import house_style
from inference.studies.report.general_figures import general_pictures
from inference.studies.report.ink import as_svg, styles
from inference.studies.report.model_figures import chiefs, model_pictures
from inference.studies.report.page import NUMBER, linked, render
from inference.studies.report.places import locate

rng = np.random.default_rng(0)
KINDS_OF_COLUMNS = ("real", 3, "binary", "binary")
# Parameters, sizes and the shape of an image: asymmetric, and small.
FACTORS = {"weights": rng.normal(size=(2, 6)), "bias": rng.normal(size=6)}
PROGRAMS = {
    "latent_trait": (FACTORS, {}, None),
    "clipped_gaussian": (FACTORS, {"noise": 0.7}, (2, 3)),
    "mixed_trait": (
        {
            "weights": rng.normal(size=(2, 5)),
            "bias": rng.normal(size=5),
            "noise": np.array([0.6]),
        },
        {"kinds": KINDS_OF_COLUMNS},
        None,
    ),
    "graded_trait": (
        {"weights": rng.normal(size=(1, 6)), "cutpoints_3": np.sort(rng.normal(size=(6, 2)))},
        {"levels": 3},
        None,
    ),
    "binary_sparse_coding": (
        {"weights": rng.normal(size=(4, 6)), "noise": np.array(1.0), "sparsity": np.array(0.2)},
        {"num_causes": 4},
        (2, 3),
    ),
    "sparse_coding": (
        {"weights": rng.normal(size=(3, 6)), "noise": np.array(1.0), "sparsity": np.array(0.2)},
        {"num_causes": 3},
        (2, 3),
    ),
    "bernoulli_mixture": (
        {"mixing": np.array([0.7, 0.3]), "probs": rng.uniform(size=(2, 6))},
        {"num_components": 2},
        None,
    ),
    "categorical_mixture": (
        {"mixing": np.array([0.7, 0.3]), "probs_3": rng.dirichlet(np.ones(3), (2, 6))},
        {"num_components": 2, "levels": 3},
        None,
    ),
    "trait_mixture": (
        {
            "mixing": np.array([0.7, 0.3]),
            "weights": rng.normal(size=(2, 1, 6)),
            "bias": rng.normal(size=(2, 6)),
        },
        {"num_components": 2, "num_factors": 1},
        None,
    ),
    "bernoulli_product": ({"probs": rng.uniform(size=6)}, {}, None),
    "combination_machine": (
        {"weights": rng.normal(size=(3, 6)), "bias": rng.normal(size=3)},
        {"num_causes": 3},
        (2, 3),
    ),
    "real_combination_machine": (
        {"weights": rng.normal(size=(12, 6)), "bias": rng.normal(size=12)},
        {"num_causes": 12},
        None,
    ),
    "noisy_or_network": (
        {
            "weights_1": rng.exponential(size=(3, 6)),
            "weights_2": rng.exponential(size=(2, 3)),
            "leak_0": rng.uniform(size=6),
            "leak_1": rng.uniform(size=3),
            "leak_2": rng.uniform(size=2),
        },
        {"layers": (3, 2)},
        (2, 3),
    ),
}
METHODS = {  # bespoke, kind, what a method of the kind tells of itself
    "QuadratureEM": (True, "point", {"bound_gap": -1e-9}),
    "NUTS": (False, "sampler", {
        "rhat": 1.004, "rhat_parameters": 1.02, "ess_bulk": 812.0, "ess_tail": 650.0,
        "ess_per_second": 93.2, "divergences": 3}),
    "SVI low_rank": (False, "variational", {"pareto_k": 1.31}),
    "MAP": (False, "point", {}),
}  # fmt: skip


def made(model="latent_trait", methods=METHODS, *, rows=40, known=True):
    """A comparison as `compare` makes them, of made-up numbers."""
    rng = np.random.default_rng(1)
    truth, sizes, shape = PROGRAMS.get(model, ({"slope": np.arange(3.0)}, {}, None))
    width = 4 if model == "mixed_trait" else 6
    held_out = {x: rng.normal(-4 - 0.3 * i, 1, 30) for i, x in enumerate(methods)}
    clock = np.geomspace(0.02, 5.0, 8)
    numbers, paths, reliability = {}, {}, {}
    for name, (bespoke, kind, more) in methods.items():
        score = float(held_out[name].mean())
        paths[name] = (score - np.geomspace(2.0, 1e-5, 8), clock * rng.uniform(0.5, 2))
        numbers[name] = {
            "status": "done", "bespoke": bespoke, "kind": kind, "reason": "all steps were run",
            "compile_seconds": 1.25, "seconds": float(clock[-1]), "held_out": score,
            "held_out_error": 0.181, "recovery": 0.97, "calibration_error": 0.031,
            "calibration_expected": 0.028, **more,
        }  # fmt: skip
        said = np.linspace(0.05, 0.95, 6)
        reliability[name] = {"said": said, "seen": said**1.1, "error": 0.031, "expected": 0.028}
    settle(numbers, held_out, paths)
    numbers["SVI flow"] = {"status": "failed", "reason": "failed after 3 s: <no> memory & time"}
    values = rng.integers(0, 2, (rows, width)).astype(np.float32)
    mask = rng.random((rows, width)) < 0.9
    about = {
        "num_data": rows + 10, "num_train": rows, "num_features": width, "missing": 0.1,
        "likelihood": "quadrature", "likelihood_exact": True, "budget": 5.0, "reference": "None.",
        "refused": {}, "interrupted": False, "sizes": {x: repr(v) for x, v in sizes.items()},
        "words": "made-up bits", "image_shape": shape, "seed": 0, "versions": {"numpy": "2"},
    }  # fmt: skip
    near = {x: {s: v + rng.normal(0, 0.05, np.shape(v)) ** 2 for s, v in truth.items()}
            for x in methods}  # fmt: skip
    table = {
        "values": np.where(mask, values, 0), "mask": mask, "held_out": np.arange(rows) % 4 == 0,
        "columns": np.array([f"item {i}" for i in range(width)]),
    }  # fmt: skip
    return Comparison(
        model, about, numbers, held_out, paths, reliability, near, table, truth if known else {}
    )


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


@pytest.fixture(scope="module")
def page():
    return render(made())


# the page


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
    places = locate(comparison, "MAP", CARDS[comparison.model].figures[0].settings["rows"])
    np.testing.assert_allclose(places.mean[row], mean, atol=2e-4)
    np.testing.assert_allclose(np.diagonal(places.covariance[row]), square - mean**2, atol=5e-4)


# in a browser

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def chromium():
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no Chromium here; Debian has it as chromium-headless-shell")
    with sync_playwright() as driver, driver.chromium.launch(executable_path=program) as browser:
        yield browser


@pytest.fixture
def show(chromium, page, tmp_path):
    """Open the report; whatever it complains of, or asks of the network, fails the test."""
    file = tmp_path / "report.html"
    file.write_bytes(page)
    complaints, tabs = [], []

    def show(width=1280, **options):
        tab = chromium.new_page(viewport={"width": width, "height": 900}, **options)
        tabs.append(tab)
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda one: complaints.append(one.url)
               if not one.url.startswith(("file:", "data:")) else None)  # fmt: skip
        tab.goto(f"file://{file}")
        return tab

    yield show
    for tab in tabs:
        tab.close()
    assert complaints == []


BOXES = """() => [...document.querySelectorAll("figure svg")].map(one => {
  const box = one.getBoundingClientRect();
  return [box.left, box.top + scrollY, box.width, box.height]; })"""


@pytest.mark.parametrize("width", [1185, 390])  # a window of 1200 with a scroll bar, a telephone
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_in_a_browser(show, page, width, dark):
    from matplotlib.image import imread

    tab = show(width, color_scheme="dark" if dark else "light")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    hidden = tab.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.scroll'))")
    assert hidden == 0 or width == 390  # of the table
    shot = imread(io.BytesIO(tab.screenshot(full_page=True)))[..., :3]
    assert (shot[2, 2].mean() < 0.2) == dark
    boxes = tab.evaluate(BOXES)
    assert len(boxes) == page.count(b"<svg")
    for left, top, wide, tall in boxes:
        assert left >= 0 and left + wide <= width
        part = shot[round(top) : round(top + tall), round(left) : round(left + wide)]
        assert (np.abs(part - shot[2, 2]).max(-1) > 0.25).mean() > 0.005  # something is drawn
    # Names, roles, order of headings and contrast, by the rules of WCAG 2.
    violations = Axe().run(tab).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in violations] == []


FOCUS = """() => { const one = document.activeElement, box = one.getBoundingClientRect();
  return [one.getAttribute("href") ?? one.className, getComputedStyle(one).outlineStyle,
          box.bottom > 0 && box.top < innerHeight]; }"""


def test_all_of_it_is_reached_by_the_keyboard(show):
    """Every link in turn, marked and in view; the table is one of the stops, since it scrolls."""
    tab, stops = show(), []
    links = tab.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    for _ in range(len(links) + 1):
        tab.keyboard.press("Tab")
        place, outline, visible = tab.evaluate(FOCUS)
        assert outline == "solid" and visible, place
        stops.append(place)
    assert [x for x in stops if x != "scroll"] == links and stops.count("scroll") == 1
    assert stops[0] == "#verdict"
    tab = show()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.querySelector(':target').textContent") == "Verdict"


def test_a_link_of_the_verdict_marks_its_row(show):
    tab = show()
    tab.click("li a[href='#row-MAP']")
    assert tab.evaluate("document.querySelector(':target').id") == "row-MAP"
    colour = "getComputedStyle(document.querySelector('#row-{} td')).backgroundColor"
    assert tab.evaluate(colour.format("MAP")) != tab.evaluate(colour.format("NUTS"))
    tab.click("thead a[href='#term-excess'], thead a[href='#term-behind']")
    assert tab.evaluate("document.querySelector(':target').tagName") == "DT"


def test_nothing_is_cut_off_on_paper(show):
    """A4 less margins of 1 cm is 718 pixels wide."""
    tab = show(718)
    tab.emulate_media(media="print")
    cut = """() => [...document.querySelectorAll("body *")].filter(one =>
      one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 80))"""
    assert tab.evaluate(cut) == []
    assert tab.pdf(format="A4").startswith(b"%PDF")
