"""Canvas of all figures, and Figure 1 of the paper."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.data.paper import NAMES
from scripts.reports.tables import Record


@contextmanager
def canvas(
    path: Path,
    size: tuple[float, float],
    dpi: int,
    shape: tuple[int, ...] = (1, 1),
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[Any]:
    """Yield the axes of a figure, and save it at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", **more)
    try:
        yield axes
        figure.savefig(path, dpi=dpi, metadata=metadata)
    finally:
        plt.close(figure)


def table1(records: list[Record], titled: Callable[[str], str], path: Path) -> None:
    """Figure 1: predictive variances of QP against EP, classification and counts."""
    pairs: dict[str, list[Any]] = {name: [] for name in NAMES}
    for record in records:
        if record["block"] == "main" and record["data"] in pairs and "variances" in record:
            pairs[record["data"]].append(np.array(record["variances"]))
    sides = {
        "(a) Binary classification": [d for d in NAMES if d != "mining"],
        "(b) Poisson regression": ["mining"],
    }
    with canvas(path, (9.0, 8.0), 110, (2, 2)) as panels:
        for (axis, ratio), (title, names) in zip(panels.T, sides.items(), strict=True):
            points = {n: np.concatenate(pairs[n], axis=1) for n in names if pairs[n]}
            if not points:
                continue
            everything = np.concatenate(list(points.values()), axis=1)
            limits = 0.7 * everything.min(), 1.4 * everything.max()
            axis.plot(limits, limits, color="0.6", linewidth=1.0, linestyle="--")
            ratio.axhline(1.0, color="0.6", linewidth=1.0, linestyle="--")
            for name, (ep, qp) in points.items():
                style = {"s": 7, "alpha": 0.5, "linewidths": 0, "label": titled(name)}
                axis.scatter(ep, qp, **style)
                ratio.scatter(ep, qp / ep, **style)
            axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=title)
            ratio.set(xscale="log", xlim=limits)
            axis.set_ylabel("QP predictive variance of f")
            ratio.set_ylabel("QP / EP")
            ratio.set_xlabel("EP predictive variance of f")
            axis.legend(frameon=False, fontsize=8, markerscale=2)
