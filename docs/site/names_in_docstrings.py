"""Names in single backticks of docstrings lead to what they name, where that is on a page.

Arguments and attributes are written so too, and are no targets: they stay as they are. Roles such
as ``:class:`` have to lead somewhere, as the nitpicky build wants it. Pages that docstrings name
by their file, as ``docs/defaults.md``, are linked by their title. Of classes our own members are
shown, and none that scikit-learn or a base of Python gives.
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
    """Whether a member is left out: what is not ours, and hooks of scikit-learn."""
    if name.startswith("_") or (name.startswith("set_") and name.endswith("_request")):
        return True
    own = member.fget if isinstance(member, property) else getattr(member, "func", member)
    if (inspect.isroutine(own) or inspect.isclass(own)) and not str(
        getattr(own, "__module__", "")
    ).startswith(OURS):
        return True
    return None


def setup(app: Any) -> dict[str, bool]:
    """Connect all three; names of pages after numpydoc."""
    app.connect("missing-reference", stays, priority=900)
    app.connect("autodoc-process-docstring", linked, priority=900)
    app.connect("autodoc-skip-member", skipped)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
