"""Formulas of pages are set by the KaTeX of ``_static/katex``, in the browser and without a fetch.

Only pages that have a formula load it. A formula that KaTeX cannot read stands there in red and is
an error of the browser's console, for which ``tests/docs_site`` looks.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes

FILES = {
    "css": ["katex/katex.min.css"],
    "js": ["katex/katex.min.js", "katex/auto-render.min.js", "katex/render.js"],
}


def inline(translator: Any, node: nodes.Element) -> None:
    """Write a formula within a line."""
    translator.body.append(translator.starttag(node, "span", "", CLASS="math notranslate"))
    translator.body.append(rf"\({translator.encode(node.astext())}\)</span>")
    raise nodes.SkipNode


def displayed(translator: Any, node: nodes.Element) -> None:
    """Write a formula of lines of its own; one with a label gets the label's number."""
    translator.body.append(translator.starttag(node, "div", CLASS="math notranslate"))
    if node["number"]:
        number = node["number"]
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    text = node.astext()
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{aligned}}{text}\end{{aligned}}"
    translator.body.append(rf"\[{translator.encode(text)}\]</div>" + "\n")
    raise nodes.SkipNode


def load(app: Any, page: str, template: str, context: Any, doctree: Any) -> None:
    """Add scripts and styles to a page with formulas."""
    if doctree is None or not list(doctree.findall(lambda n: isinstance(n, MATHS))):
        return
    for path in FILES["css"]:
        app.add_css_file(path)
    for path in FILES["js"]:
        app.add_js_file(path, loading_method="defer")


MATHS = (nodes.math, nodes.math_block)


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer under the name by which Sphinx chooses one."""
    app.add_html_math_renderer("katex", (inline, None), (displayed, None))
    app.config.html_math_renderer = "katex"
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
