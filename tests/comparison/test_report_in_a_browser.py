"""The report in a real browser: nothing hidden or cut off, reached by the keyboard, legible."""

import io
import os
import shutil

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from made_comparisons import made
from playwright.sync_api import sync_playwright

from inference.comparison.report.page import render


@pytest.fixture(scope="module", params=[False, True], ids=["example", "own table"])
def page(request):
    """The report of an example, or of a table of one's own."""
    comparison = made()
    if request.param:
        lines = [f"{'item' if i else 'model'} {i}  " + "0.123   " * 12 for i in range(60)]
        reasons = ["Take NUTS for draws from the posterior: its intervals arrived after 31 s."]
        comparison.about["recommended"] = {"method": "NUTS", "reasons": reasons, "lines": lines}
    return render(comparison)


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
    tab.click("summary")
    hidden = tab.evaluate("""[...document.querySelectorAll("div.scroll")]
      .map(e => e.scrollWidth - e.clientWidth)""")
    assert hidden == [0, 0] or width == 390  # of the tables
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
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
  return [one.getAttribute("href") ?? one.tagName, getComputedStyle(one).outlineStyle,
          box.bottom > 0 && box.top < innerHeight]; }"""


def test_all_of_it_is_reached_by_the_keyboard(show):
    """Every link in turn, marked and in view; what scrolls or unfolds is one of the stops."""
    tab, stops = show(), []
    links = tab.evaluate("""[...document.querySelectorAll("a, pre, div.scroll, summary")]
      .filter(a => !a.closest("details > div")).map(a => a.getAttribute("href") ?? a.tagName)""")
    for _ in links:
        tab.keyboard.press("Tab")
        place, outline, visible = tab.evaluate(FOCUS)
        assert outline == "solid" and visible, place
        stops.append(place)
    assert stops == links and stops.count("DIV") == stops.count("SUMMARY") == 1
    assert stops[0] == "#verdict"
    tab = show()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.querySelector(':target').textContent") == "Verdict"
    tab.focus("summary")
    assert not tab.is_visible("details table")
    tab.keyboard.press("Enter")
    assert tab.is_visible("details table")


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
    # What cannot be unfolded or scrolled on paper is there.
    assert tab.evaluate("document.querySelector('details table').checkVisibility()")
    height = "[...document.querySelectorAll('.scroll')].map(e => e.scrollHeight - e.clientHeight)"
    assert max(tab.evaluate(height)) <= 1
    assert tab.pdf(format="A4").startswith(b"%PDF")
