"""Style of all figures of the site: colours that all readers can tell apart, fonts, sizes."""

from __future__ import annotations

from typing import Any

#: Okabe and Ito (2008), without black and yellow: blue, orange, green, red, pink, light blue.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")


def set_style(*_: Any) -> None:
    """Set matplotlib's defaults; sphinx-gallery passes its configuration and a file."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "axes.prop_cycle": plt.cycler(color=COLOURS),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "figure.figsize": (6.4, 3.8),
            "figure.constrained_layout.use": True,
            "image.cmap": "viridis",
            "legend.frameon": False,
        }
    )
