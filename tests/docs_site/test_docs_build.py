"""The site as it is built: no warning, no dead link, nothing from outside on a page."""

import re
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from tests.tools.docs_built import DOCS, built


class Read(HTMLParser):
    """Addresses of a page that are links, those that are loaded with it, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors.add(given.get("id") or given.get("name"))
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.add(given["href"])
        elif tag in ("script", "img", "source", "iframe") and given.get("src"):
            self.loaded.add(given["src"])


@cache
def read(path):
    """Parse a page once."""
    return Read(path.read_text())


def dead(site):
    """Links and files of pages that lead nowhere on the site."""
    found = set()
    for page in site.rglob("*.html"):
        if "_static" in page.parts:
            continue
        for address in read(page).links | read(page).loaded:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = target.is_file()
            if there and parts.fragment and target.suffix == ".html":
                there = unquote(parts.fragment) in read(target).anchors
            if not there:
                found.add((page.name, address))
    return found


def check(site):
    """The properties of every build."""
    pages = [p for p in site.rglob("*.html") if "_static" not in p.parts]
    assert len(pages) > 100
    assert dead(site) == set()
    outside = {
        (page.name, address)
        for page in pages
        for address in read(page).loaded
        if urlsplit(address).scheme not in ("", "data") or urlsplit(address).netloc
    }
    assert outside == set()
    links = {link for page in pages for link in read(page).links}
    for project in ("docs.python.org", "numpy.org", "scikit-learn.org"):
        assert any(project in link for link in links), project
    text = (site / "how-it-works.html").read_text()
    assert len(re.findall(r'class="math notranslate', text)) > 30
    assert "katex.min.js" in text
    assert "katex.min.js" not in (site / "install.html").read_text()


@pytest.mark.slow
def test_the_whole_site(whole_site):
    check(whole_site)
    shown = list((whole_site / "auto_gallery").glob("plot_*.html"))
    assert len(shown) == len(list((DOCS / "gallery").glob("plot_*.py")))
    for page in shown:
        assert "sphx-glr-single-img" in page.read_text() or "multi-img" in page.read_text(), page


@pytest.mark.slow
def test_the_quick_build(tmp_path):
    check(site := built(tmp_path, quick=True))
    page = site / "auto_gallery" / "plot_05_counts_with_exposure.html"
    assert "sphx-glr-single-img" in page.read_text()


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "other.html").write_text('<p id="here">')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here"></a><a href="other.html#gone"></a><a href="#top"></a>'
        '<img src="a%20b.png"><a href="https://example.org/no.html"></a><p id="top">'
    )
    assert {address for _, address in dead(tmp_path)} == {"other.html#gone", "a%20b.png"}
