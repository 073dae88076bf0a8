"""Every page in real Chromium, as wide as a desktop's and a phone's window, served from here.

Formulas and figures can be seen, nothing runs out of the page, the console has no error and no
request leaves the loopback; the search finds. Needs Playwright for Python and Debian's chromium;
QP_DOCS_SHOTS names a folder for pictures of all pages.
"""

import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
#: What is wrong with a page that is open: pictures, formulas, and what is wider than the window.
LOOK = """() => {
  const wrong = [];
  for (const image of document.images) {
    const box = image.getBoundingClientRect();
    const hidden = image.offsetParent === null;
    if (!hidden && (!image.complete || image.naturalWidth === 0 || box.width < 1))
      wrong.push("picture " + image.src);
  }
  for (const formula of document.querySelectorAll(".math.notranslate")) {
    const set = formula.querySelector(".katex");
    if (!set || set.getBoundingClientRect().width < 1 || formula.querySelector(".katex-error"))
      wrong.push("formula " + formula.textContent.slice(0, 60));
    else if (formula.tagName === "DIV" && set.getBoundingClientRect().left <
        formula.getBoundingClientRect().left - 1)
      wrong.push("begins outside: " + formula.textContent.slice(0, 60));
  }
  const over = document.documentElement.scrollWidth - window.innerWidth;
  if (over > 1) wrong.push("wider than the window by " + over);
  return wrong;
}"""


class Quiet(SimpleHTTPRequestHandler):
    log_message = lambda *_: None  # noqa: E731


@pytest.fixture(scope="module")
def address(whole_site):
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=whole_site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def opened(browser, address, size):
    """A page of this size, and the list that its errors and requests elsewhere go to."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height})
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("requestfailed", lambda r: wrong.append(f"failed: {r.url}"))

    def asked(request):
        if not request.url.startswith((address, "data:", "blob:")):
            wrong.append(f"request: {request.url}")

    page.on("request", asked)
    return page, wrong


@pytest.mark.parametrize("size", SIZES)
def test_every_page(browser, address, whole_site, size):
    page, wrong = opened(browser, address, size)
    found, shots = {}, os.environ.get("QP_DOCS_SHOTS")
    pages = sorted(p for p in whole_site.rglob("*.html") if "_static" not in p.parts)
    for path in pages:
        name = str(path.relative_to(whole_site))
        wrong.clear()
        page.goto(f"{address}/{name}", wait_until="load")
        # Pictures further down are loaded when they come near the window.
        page.evaluate(
            "() => document.images.length && [...document.images].forEach(i => i.loading = 'eager')"
        )
        page.wait_for_load_state("networkidle")
        if errors := [*wrong, *page.evaluate(LOOK)]:
            found[name] = errors
        if shots:
            place = Path(shots) / size / f"{name.replace('/', '_')}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=place, full_page=True)
    page.close()
    assert found == {}
    assert len(pages) > 100


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("asked", "page_found"), [("infer_sparse", "infer_sparse"), ("boosting", "bench-boosting")]
)
def test_the_search_finds(browser, address, size, asked, page_found):
    page, wrong = opened(browser, address, size)
    page.goto(f"{address}/search.html?q={asked}")
    page.wait_for_selector("ul.search li a", timeout=20_000)
    page.wait_for_load_state("networkidle")
    links = page.eval_on_selector_all("ul.search li a", "all => all.map(a => a.href)")
    page.close()
    assert any(page_found in link for link in links), links
    assert wrong == []


def test_a_page_that_is_broken_is_found(browser, address, tmp_path):
    """What the looks above are for: each defect of this page is seen."""
    page, wrong = opened(browser, address, "phone")
    page.set_content(
        '<img src="http://127.0.0.1:9/a.png" width="5" height="5">'
        '<span class="math notranslate">x</span>'
        '<div style="width: 900px">wide</div><script>undefined_name()</script>'
    )
    page.wait_for_timeout(500)
    seen = page.evaluate(LOOK)
    page.close()
    assert [s.split()[0] for s in seen] == ["picture", "formula", "wider"]
    assert any("undefined_name" in w for w in wrong)
    assert any(w.startswith("request: http://127.0.0.1:9") for w in wrong)
