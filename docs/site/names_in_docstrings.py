"""Names in single backticks of docstrings lead to what they name, where that is on a page.

Arguments and attributes are written so too, and are no targets: they stay as they are. Roles such
as ``:class:`` have to lead somewhere, as the nitpicky build wants it. Pages that docstrings name
by their file, as ``docs/defaults.md``, are linked by their title. Classes show our own members, and
none that scikit-learn or a base of Python gives.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes

OURS = ("qpruntime", "tablegen")
PAGE = re.compile(r"``docs/([\w-]+)\.md``|(?<![\w/`])docs/([\w-]+)(?:\.md)?(?![\w/`])")


def stays(app: Any, env: Any, node: Any, contents: nodes.Node) -> nodes.Node | None:
    """Show a name in backticks that is nowhere as code."""
    if node.get("reftype") != "obj" or node.get("refdomain") != "py":
        return None
    return contents


def linked(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Link pages that a docstring names."""
    lines[:] = [PAGE.sub(lambda m: f":doc:`/{m[1] or m[2]}`", line) for line in lines]


def skipped(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members that are not ours, and hooks of scikit-learn."""
    if name.startswith("_") or (name.startswith("set_") and name.endswith("_request")):
        return True
    function = member.fget if isinstance(member, property) else getattr(member, "func", member)
    is_code = inspect.isroutine(function) or inspect.isclass(function)
    if is_code and not str(getattr(function, "__module__", "")).startswith(OURS):
        return True
    return None


def called(
    app: Any, what: str, name: str, found: Any, options: Any, signature: str | None, returns: str
) -> tuple[str, str] | None:
    """Show no arguments of what only the package makes: results take one that begins with _."""
    if what == "class" and re.search(r"[(\s]_\w", signature or ""):
        return "", ""
    return None


def setup(app: Any) -> dict[str, bool]:
    """Connect all; names of pages after numpydoc."""
    app.connect("autodoc-process-signature", called)
    app.connect("missing-reference", stays, priority=900)
    app.connect("autodoc-process-docstring", linked, priority=900)
    app.connect("autodoc-skip-member", skipped)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
