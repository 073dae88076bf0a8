"""Likelihood known from its table alone: its valid observations, and a check of its code.

A table of surfaces has everything that inference needs, so that it can be opened without the code
of its likelihood. Names in a file are never imported. The file holds log p at a few points: code
that is passed with the table has to give the same values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime import likelihoods
from qpruntime._typing import Array
from qpruntime._validation import finite
from qpruntime.errors import InputError, TableError
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import ABSENT_SPLIT
from qpruntime.likelihoods.responses import signs
from qpruntime.projection import interpolation
from qpruntime.table_format.metadata import Axis, Metadata

__all__ = ["MODES", "describe", "difference", "known", "mode_of", "standin"]

#: Names of the modes of `qpruntime.projection.interpolation`.
MODES = {
    "rows": interpolation.ROWS,
    "mirror": interpolation.MIRROR,
    "location": interpolation.LOCATION,
    "volume": interpolation.VOLUME,
}
# Values of log p at the probes may differ by rounding, and by that of another C library.
_SAME = 1e-9
# Relative positions of the probes on an axis.
_PROBES = (0.07, 0.31, 0.47, 0.64, 0.93)


def mode_of(likelihood: Likelihood, third: bool) -> str:
    """Return the mode in which the observations of a likelihood select their slab."""
    if likelihood.mirror:
        return "mirror"
    if likelihood.location:
        return "location"
    return "volume" if third else "rows"


def describe(
    likelihood: Likelihood, mu: Axis, outcomes: Sequence[float], mode: str, source: str = ""
) -> dict[str, Any]:
    """Return the traits for the file; `source` describes the origin of the code."""
    probe_outcomes = [outcomes[round(part * (len(outcomes) - 1))] for part in (0.0, 0.5, 1.0)]
    if mode == "volume":
        probe_outcomes = [outcomes[0] + part * (outcomes[1] - outcomes[0]) for part in _PROBES]
    probes = []
    for y in sorted(set(probe_outcomes)):
        for part in _PROBES:
            f = mu.start + part * (mu.stop - mu.start)
            value = float(likelihood.log_prob(f, y))
            probes.append([f, y, value if math.isfinite(value) else None])
    return {
        "outcomes": likelihood.outcomes,
        "mode": mode,
        "log_concave": likelihood.log_concave,
        "probes": probes,
        "source": source,
    }


def known(metadata: Metadata) -> Likelihood | None:
    """Return the registered likelihood of a table of surfaces, None if it is another one."""
    if metadata.likelihood not in likelihoods.names():
        return None
    try:
        registered = likelihoods.get(metadata.likelihood, **metadata.parameters)
    except InputError:
        return None
    return None if difference(registered, metadata) else registered


def difference(likelihood: Likelihood, metadata: Metadata) -> str:
    """Return the difference between a likelihood and that of a table; empty if there is none."""
    if likelihood.name != metadata.likelihood:
        return f"its name is {likelihood.name!r}, not {metadata.likelihood!r}"
    if likelihood.parameters != metadata.parameters:
        return f"its parameters are {likelihood.parameters}, not {metadata.parameters}"
    if not likelihood.has_density:
        return ""
    for f, y, expected in metadata.traits["probes"]:
        try:
            value = float(likelihood.log_prob(f, y))
        except InputError as error:
            return f"y = {y:g} is none of its observations: {error}"
        same = expected is not None and abs(value - expected) <= _SAME * max(1.0, abs(expected))
        if not (same or (expected is None and not math.isfinite(value))):
            return f"log p(y = {y:g} | f = {f:g}) is {value:.12g}, not {expected}"
    return ""


def standin(metadata: Metadata, path: str | os.PathLike[str]) -> Likelihood:
    """Return a likelihood without a density that accepts the observations of the table.

    Raises
    ------
    TableError
        If the traits of the file are not valid.
    """
    traits = metadata.traits
    _check(traits, metadata, path)
    words, mode = traits["outcomes"], traits["mode"]

    def validate(y: ArrayLike) -> Array:
        """Return observations that the table holds, or raise `InputError`."""
        if mode == "mirror":
            return signs(y)
        values = finite(y, "y")
        if mode == "location":
            return values
        if mode == "volume":
            low, high = metadata.outcomes
            wrong = (values < low) | (values > high)
            domain = f"{low:g} to {high:g}"
        else:
            wrong = ~np.isin(values, metadata.outcomes)
            shown = [f"{v:g}" for v in metadata.outcomes]
            domain = ", ".join(shown if len(shown) < 9 else [*shown[:4], "...", shown[-1]])
        if wrong.any():
            raise InputError(
                f"y has the value {values[wrong].flat[0]:g}, but the table {path} holds y = "
                f"{domain} ({words})"
            )
        return values

    return Likelihood(
        name=metadata.likelihood,
        outcomes=words,
        split=ABSENT_SPLIT,
        validate=validate,
        mirror=mode == "mirror",
        location=mode == "location",
        parameters=dict(metadata.parameters),
        log_concave=traits["log_concave"],
    )


def _check(traits: dict[str, Any], metadata: Metadata, path: str | os.PathLike[str]) -> None:
    mode = traits.get("mode")
    third = len(metadata.axes) == 3
    sound = {
        "mode": isinstance(mode, str) and mode in MODES and third == (mode == "volume"),
        "outcomes": isinstance(traits.get("outcomes"), str),
        "log_concave": isinstance(traits.get("log_concave"), bool),
        "source": isinstance(traits.get("source"), str),
        "probes": _probes(traits.get("probes")),
    }
    for name, fine in sound.items():
        if not fine:
            raise TableError(f"{path}: metadata field 'traits' has {name} {traits.get(name)!r}")
    ends = [metadata.axes[2].start, metadata.axes[2].stop] if third else metadata.outcomes
    single = mode in ("mirror", "location")
    if metadata.outcomes != ends or (single and metadata.outcomes != [float(mode == "mirror")]):
        raise TableError(f"{path}: metadata field 'outcomes' is {metadata.outcomes!r}")
    expected = interpolation.NAMES if metadata.projection is None else interpolation.WP_NAMES
    if tuple(metadata.surfaces) != expected:
        raise TableError(
            f"{path}: holds the surfaces {metadata.surfaces}, this version reads {expected}"
        )


def _probes(value: object) -> bool:
    if not isinstance(value, list):
        return False
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 3:
            return False
        if not all(isinstance(v, (int, float)) for v in entry[:2]):
            return False
        if not (entry[2] is None or isinstance(entry[2], (int, float))):
            return False
    return True
