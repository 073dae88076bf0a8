"""Run the Python blocks of Markdown pages and show what they print and draw under the code.

Blocks of one page run in order and share their names. ``docs/data`` is at hand under that path, so
that code on a page also runs from the top of a checkout. Figures that a block leaves open are shown
under it. The quick build shows the code alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from figure_style import set_style

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Folder for figures, beside the pages, because Sphinx takes pictures from its sources only.
FIGURES = "auto_pages"


class Shown(NamedTuple):
    """Text that one block printed, and its figures as PNG."""

    text: str
    figures: list[bytes]


def blocks(text: str) -> list[str]:
    """Return the Python blocks of a page."""
    return BLOCK.findall(text)


@contextlib.contextmanager
def folder_with_data() -> Iterator[None]:
    """Work in a new folder that has ``docs/data``."""
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        if (DOCS / "data").is_dir():
            shutil.copytree(DOCS / "data", Path(place) / "docs" / "data")
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(back)


def run(text: str, name: str) -> list[Shown]:
    """Run the blocks of a page in order; return what each of them shows.

    An exception names the page and the line of its block, as compiled code has the name.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from qpruntime._numba import unannounced

    names: dict[str, Any] = {"__name__": name}
    results = []
    with folder_with_data(), unannounced(), matplotlib.rc_context():
        plt.close("all")
        set_style()
        for number, code in enumerate(blocks(text), 1):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, f"{name}, block {number}", "exec"), names)
            figures = []
            for key in plt.get_fignums():
                png = io.BytesIO()
                plt.figure(key).savefig(png, dpi=150, bbox_inches="tight")
                figures.append(png.getvalue())
            plt.close("all")
            results.append(Shown(printed.getvalue(), figures))
    return results


def with_results(text: str, page: str, source: Path) -> str:
    """Return a page with its results; write its figures under ``source``."""
    results = iter(run(text, page))
    folder = source / FIGURES
    folder.mkdir(exist_ok=True)
    count = 0

    def shown(match: re.Match[str]) -> str:
        """Return a block with its output and figures under it."""
        nonlocal count
        result, parts = next(results), [match[0]]
        if result.text.strip():
            parts.append(f"````{{code-block}} text\n:class: output\n\n{result.text.rstrip()}\n````")
        for png in result.figures:
            count += 1
            path = folder / f"{page}-{count}.png"
            path.write_bytes(png)
            parts.append(
                f"```{{image}} {FIGURES}/{path.name}\n:alt: Figure that the code above draws\n"
                ":class: output\n:width: 100%\n```"
            )
        return "\n\n".join(parts)

    return BLOCK.sub(shown, text)


def read(app: Any, page: str, content: list[str]) -> None:
    """Put results under the code of a page."""
    path = Path(app.env.doc2path(page))
    if path.suffix == ".md" and blocks(content[0]) and page not in app.config.pages_shown_only:
        content[0] = with_results(content[0], page, Path(app.srcdir))


def setup(app: Any) -> dict[str, bool]:
    """Connect it."""
    from qpruntime._numba import unannounced

    app.add_config_value("pages_shown_only", (), "env")
    if "QP_DOCS_QUICK" not in os.environ:
        app.connect("source-read", read)
    # The gallery's examples print no lines about compiling kernels either.
    quiet = contextlib.ExitStack()
    quiet.enter_context(unannounced())
    app.connect("build-finished", lambda *_: quiet.close())
    return {"parallel_read_safe": False, "parallel_write_safe": True}
