"""Commands that messages recommend: each one is understood by a shell and by ``tablegen``.

A likelihood that only Python knows is built there, and the message says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from qpruntime import _formatting, likelihoods
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Metadata

__all__ = ["Wanted", "again", "build", "has_grid", "observations", "output", "verify"]

# Surfaces of so many bytes name their limit, whatever the default is.
_LARGE = 100_000_000


@dataclass(frozen=True)
class Wanted:
    """A table that is to be built.

    Attributes
    ----------
    likelihood : Likelihood
    preset : {"grid", "compact", "surfaces"}
        Surfaces take its place where the likelihood has no such table.
    p : float, optional
        Order of L_p projections.
    source : str
        ``package.module:name``, if the likelihood is found there.
    """

    likelihood: Likelihood
    preset: str = "grid"
    p: float | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """Return the likelihood's name on the command line, or nothing if it has none."""
        if likelihoods.is_registered(self.likelihood):
            return likelihoods.shortest(self.likelihood)
        return self.source if _formatting.MODULE_NAME.fullmatch(self.source) else ""

    @property
    def possible(self) -> str:
        """The preset, or surfaces if there is no such table."""
        grid = self.preset == "grid" and has_grid(self.likelihood)
        compact = self.preset == "compact" and self.likelihood.reduction is not None
        plain = self.p is None and likelihoods.is_registered(self.likelihood)
        return self.preset if plain and (grid or compact) else "surfaces"


def build(wanted: Wanted, **options: Any) -> str:
    """Return the ``tablegen build`` of a table, or the call where only Python has the likelihood.

    The options are those of `tablegen.build`. Surfaces of counts get the first of them, unless the
    options name some.
    """
    if wanted.p is not None:
        options = {"projection": "wp", "p": wanted.p} | options
    if not wanted.name:
        arguments = "".join(f", {name}={value!r}" for name, value in options.items())
        return f"tablegen.build(likelihood, preset='surfaces'{arguments}) in Python"
    words: list[object] = ["build", "--likelihood", wanted.name]
    if wanted.possible != "grid":
        words += ["--preset", wanted.possible]
    if wanted.possible == "surfaces" and not {"outcomes", "y_range"} & set(options):
        options |= _first_counts(wanted.likelihood)
    for name, value in options.items():
        words += _option(name, value)
    return _formatting.command(*words)


def _option(name: str, value: Any) -> list[object]:
    """Return the words of one option."""
    if name == "limit":
        return ["--size-limit", math.ceil(value / 1e6)]
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    if name in ("counts", "outcomes"):
        # An equals sign is needed: a value that begins with a minus would be taken for an option.
        text = ",".join(map(_formatting.number, value)) if isinstance(value, list) else _span(value)
        return [f"{option}={text}"]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *(_formatting.number(v) if isinstance(v, float) else v for v in values)]


def again(metadata: Metadata, likelihood: Likelihood) -> str:
    """Return the command that makes this very table, but for its place: see `output`."""
    options: dict[str, Any] = {}
    if metadata.kind == "grid":
        options["method"] = "direct" if metadata.method == "direct" else "spectral"
        options["dtype"] = metadata.dtype
    if metadata.kind != "compact":
        for axis, name in zip(metadata.axes, ("mu", "log10_sigma"), strict=False):
            options[f"{name}_range"] = (axis.start, axis.stop)
            if metadata.kind == "grid":
                # The step was given, and divides the range up to rounding.
                options[f"{name}_step"] = float(f"{axis.step:.10g}")
    if metadata.kind == "grid" and not likelihood.mirror:
        options["counts"] = (metadata.outcomes[0], metadata.outcomes[-1])
    if metadata.kind == "surfaces":
        options |= observations(metadata)
        if metadata.nbytes > _LARGE:
            options["limit"] = metadata.nbytes
    tolerance = metadata.certificate.get("tolerance")
    if isinstance(tolerance, float) and 0.0 < tolerance < math.inf:
        options["tolerance"] = tolerance
    source = str(metadata.traits.get("source") or "")
    return build(Wanted(likelihood, metadata.kind, metadata.order, source), **options)


def output(command: str, path: str | os.PathLike[str], *, force: bool = False) -> str:
    """Return a command of `build` with the place of the table, to be replaced by `force`."""
    if not command.startswith("tablegen build "):
        return f"{command}, with output={os.fspath(path)!r}" + (", force=True" if force else "")
    words = ["--output", os.fspath(path), *(["--force"] if force else [])]
    return f"{command} {_formatting.quoted(*words)}"


def observations(metadata: Metadata) -> dict[str, Any]:
    """Return the option that names the observations of a table of surfaces."""
    mode, outcomes = metadata.traits.get("mode"), metadata.outcomes
    if mode == "volume":
        return {"y_range": (outcomes[0], outcomes[-1])}
    if mode != "rows":
        return {}
    counts = {after - before for before, after in pairwise(outcomes)} == {1.0}
    if counts and outcomes[0] >= 0.0 and outcomes[0] == int(outcomes[0]):
        return {"outcomes": range(int(outcomes[0]), int(outcomes[-1]) + 1)}
    return {"outcomes": list(outcomes)}


def verify(path: str | os.PathLike[str]) -> str:
    """Return the command that checks a table."""
    return _formatting.command("verify", os.fspath(path))


def has_grid(likelihood: Likelihood) -> bool:
    """Return True for labels and counts; for real numbers a grid would need endless slabs."""
    if likelihood.mirror:
        return True
    try:
        likelihood.validate([0.5])
    except InputError:
        return True
    return False


def _first_counts(likelihood: Likelihood) -> dict[str, Any]:
    if likelihood.mirror or likelihood.location:
        return {}
    try:
        likelihood.validate([0, 50])
    except InputError:
        return {}
    return {"outcomes": range(51)}


def _span(counts: Sequence[float]) -> str:
    return f"{counts[0]:.0f}:{counts[-1]:.0f}"
