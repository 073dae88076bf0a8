"""Print the examples that the quick build of the site runs, as ``QP_DOCS_EXAMPLES`` has them.

These are the three that `CHEAP` names, or as many of the first where they are not there.
"""

from __future__ import annotations

import re
from pathlib import Path

GALLERY = Path(__file__).parents[1] / "gallery"
COUNT = 3
#: Each takes a second or two.
CHEAP: tuple[str, ...] = ("plot_01_intervals_on_probabilities",)


def pattern() -> str:
    """Return a regular expression that fits the paths of the cheap examples and no others."""
    found = sorted(path.stem for path in GALLERY.glob("plot_*.py"))
    names = [name for name in CHEAP if name in found]
    names += [name for name in found if name not in names]
    return rf"/({'|'.join(map(re.escape, names[:COUNT]))})\.py$"


if __name__ == "__main__":
    print(pattern())
