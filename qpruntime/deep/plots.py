"""Figures of a trained model: its energy, and what each layer makes of one or two inputs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from qpruntime._formatting import install_hint
from qpruntime._typing import Array
from qpruntime.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_history", "draw_layers"]

#: Steps whose mean is drawn, points of a curve, and points of one side of a map.
_WINDOW, _POINTS, _SIDE = 100, 200, 50

Moments = Callable[[Array], list[tuple[Array, Array]]]


def draw_history(histories: list[Array], axes: Axes | None = None) -> Axes:
    """Draw energies by steps with their running means; returns the axes."""
    if axes is None:
        axes = _pyplot().subplots(layout="constrained")[1]
    for history in histories:
        (line,) = axes.plot(np.arange(1, len(history) + 1), history, alpha=0.3, lw=0.5)
        window = min(_WINDOW, len(history))
        mean = np.convolve(history, np.ones(window) / window, mode="valid")
        axes.plot(np.arange(window, len(history) + 1), mean, color=line.get_color())
    # The first steps, far below, would leave nothing of the rest.
    late = np.concatenate([history[len(history) // 10 :] for history in histories])
    axes.set(xlabel="step", ylabel="energy", ylim=(late.min(), late.max() + 0.05 * np.ptp(late)))
    return axes


def draw_layers(moments: Moments, low: Array, high: Array) -> Figure:
    """Draw every output of every layer between two corners; returns the figure.

    Curves with bands of two standard deviations for one input, maps of means for two. `moments`
    returns means and variances (T, Q) of every layer at points (T, D).
    """
    if len(low) > 2:
        raise InputError(
            f"layers are drawn over one or two inputs, the model has {len(low)}: "
            "draw slices with hidden_layers"
        )
    plt = _pyplot()
    grid = [
        np.linspace(a, b, _SIDE if len(low) == 2 else _POINTS)
        for a, b in zip(low, high, strict=True)
    ]
    points = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, len(low))
    layer_moments = moments(points)
    widest = max(mean.shape[1] for mean, _ in layer_moments)
    figure, rows = plt.subplots(
        len(layer_moments),
        widest,
        squeeze=False,
        layout="constrained",
        figsize=(3.2 * widest, 2.4 * len(layer_moments)),
    )
    for number, ((mean, variance), row) in enumerate(zip(layer_moments, rows, strict=True)):
        for k, axes in enumerate(row):
            if k >= mean.shape[1]:
                axes.set_visible(False)
                continue
            last = number == len(layer_moments) - 1
            axes.set_title("function" if last else f"layer {number + 1}, output {k + 1}")
            if len(low) == 1:
                std = np.sqrt(variance[:, k])
                axes.plot(points[:, 0], mean[:, k])
                axes.fill_between(
                    points[:, 0], mean[:, k] - 2.0 * std, mean[:, k] + 2.0 * std, alpha=0.2
                )
            else:
                image = axes.pcolormesh(
                    *grid, mean[:, k].reshape(_SIDE, _SIDE).T, shading="nearest"
                )
                figure.colorbar(image, ax=axes)
    return cast("Figure", figure)  # matplotlib is not followed


def _pyplot() -> ModuleType:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise InputError(f"plotting needs matplotlib: {install_hint('plot')}") from error
    return cast("ModuleType", plt)
