"""Samples of whole projections for tables of surfaces, kept on disk so that a killed build resumes.

A kept sample is named by what it was computed from, the density itself included: another
likelihood, another place or another version never finds it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import call_moments
from qpruntime._typing import Array
from qpruntime.execution.threads import Executor
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.site_kernel import NO_VALUES, WP, project_many, raise_status
from qpruntime.quadrature.sigma_star_kernels import OK, exact_run
from qpruntime.quadrature.wasserstein_kernels import parameters, wp_rule

__all__ = ["SampledCavities", "Sampler", "compute", "compute_wp"]

#: Cavities that share their quadrature nodes: how many, and how far apart in units of sigma.
_RUN, _SPAN = 25, 0.3


class SampledCavities(NamedTuple):
    """Cavities and observations, all of shape (N,); `sigma` is a standard deviation."""

    mu: Array
    sigma: Array
    y: Array


@kernel
def _sample(functions: Any, mu: Array, sigma: Array, y: Array, out: Array) -> tuple[int, int]:
    """Fill out[i] = (log Z, mean - mu, variance, sigma*); return (status, i).

    Neighbours with the same sigma and y and ascending mu are integrated together.
    """
    theta, has_moments, has_frame, split, moments, frame = functions
    start = 0
    while start < mu.size:
        stop = start + 1
        while (
            stop < mu.size
            and stop - start < _RUN
            and sigma[stop] == sigma[start]
            and y[stop] == y[start]
            and mu[stop] >= mu[stop - 1]
            and mu[stop] - mu[start] <= _SPAN * sigma[start]
        ):
            stop += 1
        part = out[start:stop]
        status = exact_run(
            split, frame, has_frame, mu[start:stop], sigma[start], y[start], theta, part
        )
        if status != OK:
            return status, start
        for i in range(start, stop):
            if has_moments:
                out[i, 0], out[i, 1], out[i, 2] = call_moments(
                    moments, mu[i], sigma[i], y[i], theta
                )
            out[i, 1] -= mu[i]
        start = stop
    return OK, 0


def compute(likelihood: Likelihood, points: SampledCavities) -> Array:
    """Integrate one block; return what is stored for it, shape (N, 4)."""
    mu, sigma, y = (np.ascontiguousarray(a, dtype=float) for a in points)
    out = np.empty((mu.size, 4))
    status, i = _sample(likelihood.functions(), mu, sigma, y, out)
    if status != OK:
        raise_status(status, likelihood, mu[i], sigma[i], y[i])
    return interpolation.encode(out[:, 0], out[:, 1], out[:, 2], out[:, 3], sigma)


def compute_wp(p: float, likelihood: Likelihood, points: SampledCavities) -> Array:
    """Return what is stored of the L_p projections of one block, shape (N, 4)."""
    source = (WP, False, True, NO_VALUES, parameters(p), wp_rule.handle, 0)
    projected = project_many(likelihood, source, *points)
    shift, std = projected.mean - points.mu, projected.std
    return interpolation.encode(projected.log_z, shift, std * std, std, points.sigma)


class Sampler:
    """Integrates projections of one likelihood and encodes them as they are stored.

    Blocks are kept in the directory `keep`, if there is one, under names that depend on `identity`,
    which says what density this is. With an order `p` these are L_p projections.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        executor: Executor,
        keep: Path | None = None,
        identity: str = "",
        p: float | None = None,
    ) -> None:
        self._compute = partial(compute, likelihood)
        if p is not None:
            self._compute = partial(compute_wp, p, likelihood)
            identity = f"wp {p!r} {identity}"
        self._executor = executor
        self._keep = keep
        self._identity = f"{version('qpruntime')} {identity}".encode()

    def __call__(
        self, blocks: Sequence[SampledCavities], report: Callable[[int, int], None] | None = None
    ) -> list[Array]:
        """Return what is stored for each block; `report` is told (done, total)."""
        by_block = {
            i: values for i, p in enumerate(blocks) if (values := self._load(p)) is not None
        }
        missing = [i for i in range(len(blocks)) if i not in by_block]
        lock = threading.Lock()

        def take(number: int, values: Array) -> None:
            self._store(blocks[missing[number]], values)
            with lock:
                by_block[missing[number]] = values
                if report is not None:
                    report(len(by_block), len(blocks))

        self._executor.each(((self._compute, blocks[i]) for i in missing), take)
        return [by_block[i] for i in range(len(blocks))]

    def _name(self, points: SampledCavities) -> Path | None:
        if self._keep is None:
            return None
        digest = hashlib.sha256(self._identity)
        for array in points:
            digest.update(np.ascontiguousarray(array, dtype=float).data)
        return self._keep / digest.hexdigest()

    def _load(self, points: SampledCavities) -> Array | None:
        path = self._name(points)
        if path is None or not path.is_file():
            return None
        content = path.read_bytes()
        # A power failure can leave a file of the right name without its bytes.
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            return None
        return np.frombuffer(content[32:]).reshape(-1, interpolation.BANDS)

    def _store(self, points: SampledCavities, values: Array) -> None:
        path = self._name(points)
        if path is None:
            return
        data = np.ascontiguousarray(values).tobytes()
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial")
        try:
            partial.write_bytes(hashlib.sha256(data).digest() + data)
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
