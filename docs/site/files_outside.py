"""Links of pages to files of the project that are no pages: to the page that has them, or to none.

Pages are read on code hosts too, where ``../SECURITY.md`` leads to the file. The site leads to its
page if there is one, and shows the name of a source file as code.
"""

from __future__ import annotations

import re
from typing import Any

#: Pages that show files from outside of docs.
PAGES = {
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../SECURITY.md": "contributing.md#files-from-strangers",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:#]+?)(#[^)\s]*)?\)")


def led(match: re.Match[str]) -> str:
    """Return a link as the site has it."""
    words, target, anchor = match[1], match[2], match[3] or ""
    if target in PAGES:
        page, _, section = PAGES[target].partition("#")
        return f"[{words}]({page}{anchor or (section and '#' + section)})"
    if target.startswith("../") or target.endswith(".py"):
        name = target.removeprefix("../")
        return f"{words} (`{name}`)" if words.strip("`") not in name else f"`{name}`"
    return match[0]


def read(app: Any, page: str, content: list[str]) -> None:
    """Lead the links of a Markdown page."""
    content[0] = LINK.sub(led, content[0])


def setup(app: Any) -> dict[str, bool]:
    """Connect it."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
