"""The HTML page is one file that needs no network, is small, and works in a real browser."""

from __future__ import annotations

import pathlib
import re
import shutil

import pytest
import torch

import minicompile
from tests.report import programs

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> pathlib.Path:
    def forward(x):
        x = programs.model(x)
        if x.sum() > 1e9:
            x = x / 2
        return x.softmax(-1)

    path = tmp_path_factory.mktemp("page") / "report.html"
    return minicompile.explain(forward)(torch.randn(4, 16)).save(path)


def test_it_is_self_contained_and_escaped(page) -> None:
    text = page.read_text()
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(|fetch\(|XMLHttp""", text)
    assert text.count("<svg") == 3 and text.count("<script>") == 1 and "&lt;" in text


def test_twelve_layers_stay_below_three_megabytes(tmp_path) -> None:
    model = programs.Model(layers=12, width=16)
    found = minicompile.explain(model)(torch.randn(4, 16))
    assert len(found.steps) > 60
    assert found.save(tmp_path / "report.html").stat().st_size < 3_000_000


@pytest.fixture(scope="module")
def browser():
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser, page):
    """The page in a fresh tab; any error or request to a network fails the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    trouble: list[str] = []
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("request", lambda request: trouble.append(request.url) if request.url.startswith("http") else None)
    opened.goto(page.as_uri())
    yield opened
    assert trouble == []
    opened.close()


def test_tables_sort_by_number_with_the_keyboard(tab) -> None:
    head = tab.locator("#kernels th", has_text="bytes").locator("button")
    columns = tab.locator("#kernels th").all_inner_texts()
    place = next(number for number, name in enumerate(columns) if name.strip() == "bytes")
    for order in ("descending", "ascending"):
        head.focus()
        tab.keyboard.press("Enter")
        cells = tab.locator(f"#kernels tbody tr td:nth-child({place + 1})")
        values = [float(cell.get_attribute("data-value")) for cell in cells.all()]
        assert values == sorted(values, reverse=order == "descending") and len(set(values)) > 1
        assert tab.locator("#kernels th[aria-sort]").get_attribute("aria-sort") == order


def test_the_graph_zooms(tab) -> None:
    width = "document.querySelector('#graph-area svg').getBoundingClientRect().width"
    before = tab.evaluate(width)
    tab.get_by_role("button", name="Zoom in").click()
    assert tab.evaluate(width) == pytest.approx(1.25 * before, rel=0.02)
    tab.locator("#graph-area").focus()
    tab.keyboard.press("0")
    assert tab.evaluate(width) == pytest.approx(before, rel=0.02)


def test_the_break_stands_in_the_source_with_its_patch(tab) -> None:
    assert "x = torch.where(x.sum()" in tab.locator("#source .why").inner_text()
    assert tab.locator("#source .hit").count() == 1
    assert tab.locator("#graph rect.module").count() >= 4 and tab.locator("#graph g.fused").count() >= 1
    assert tab.locator("#kernels circle").count() >= 2 and tab.locator("#memory rect").count() >= 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_and_is_legible(browser, page, scheme: str, width: int) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    opened.goto(page.as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert contrast(opened, "body") > 7 and contrast(opened, "a") > 4.5 and contrast(opened, ".soft") > 4.5
    opened.get_by_role("button", name="Dark / light").click()
    assert contrast(opened, "body") > 7
    opened.close()


def contrast(tab, selector: str) -> float:
    """The contrast of an element's text with the page, by WCAG."""
    colours = tab.evaluate(
        "s => [getComputedStyle(document.querySelector(s)).color, getComputedStyle(document.body).backgroundColor]",
        selector,
    )
    light = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)
