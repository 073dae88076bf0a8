"""Times of one site: moments, quadrature, and lookups in grids and compact tables."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import call_ratio
from qpruntime.projection.interpolation import bilinear
from qpruntime.projection.open import open_table
from qpruntime.projection.projector import project_arrays
from scripts.benchmarks.timing import Row, best, quietest


@kernel
def four_loads(values, row, column, t, u, out):
    """The least a bilinear lookup can do: indices and weights are given."""
    for n in range(out.size):
        i, j = row[n], column[n]
        low = values[i, j] + u[n] * (values[i, j + 1] - values[i, j])
        high = values[i + 1, j] + u[n] * (values[i + 1, j + 1] - values[i + 1, j])
        out[n] = low + t[n] * (high - low)


@kernel
def many_lookups(lookup_values, axes, mu, log10_sigma, out):
    """Lookups alone, without the moments of the tilted density."""
    for n in range(out.size):
        out[n] = bilinear(lookup_values, axes, 0, mu[n], log10_sigma[n])[0]


def projection() -> list[Row]:
    """One site: moments and quadrature."""
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    mu, log10_sigma = rng.uniform(-10, 10, 20000), rng.uniform(-1, 1, 20000)
    y = rng.choice([-1.0, 1.0], 20000)
    for method, table, scale, unit in (("ep", None, 1e9, "ns"), ("qp", "exact", 1e6, "us")):
        seconds = best(
            lambda m=method, t=table: project_arrays("probit", mu, 10**log10_sigma, y, m, t), 3
        )
        rows.append((f"one site, {method} {table or ''}".strip(), seconds / mu.size * scale, unit))
    return rows


def table(path: str | None) -> list[Row]:
    """A grid: open it, and look up random arguments beside the bare memory accesses."""
    if path is None or not Path(path).exists():
        return []
    code = (
        "import resource, time; from qpruntime.projection.open import open_table; "
        "k = lambda: int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize(); "
        f"a = k(); t = time.perf_counter(); open_table({path!r}); "
        "print(time.perf_counter() - t, (k() - a) / 1e6)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    opened, grown = (float(v) for v in run.stdout.split())
    grid = open_table(path)
    rng = np.random.default_rng(2)
    n = 2_000_000
    mu, log10_sigma, out = rng.uniform(-10, 10, n), rng.uniform(-1, 1, n), np.empty(n)
    t, u = (mu + 10.0) * 1000.0, (log10_sigma + 1.0) * 1000.0
    i = np.minimum(t.astype(np.int64), grid.values.shape[1] - 2)
    j = np.minimum(u.astype(np.int64), grid.values.shape[2] - 2)
    bare = best(lambda: four_loads(grid.values[0], i, j, t - i, u - j, out))
    ours = best(lambda: many_lookups(grid.values, grid.axes(), mu, log10_sigma, out))
    return [
        ("open_table", 1e3 * opened, "ms"),
        ("open_table, resident growth", grown, "MB"),
        ("grid: bare four loads", bare / n * 1e9, "ns"),
        ("grid: lookup", ours / n * 1e9, "ns"),
        ("grid: lookup / bare four loads", ours / bare, "x"),
    ]


@kernel
def compact_lookups(values, axes, ratio, coordinates, mu, sigma, y, theta, out):
    """Coordinates and spline, without the moments of the tilted density."""
    for n in range(out.size):
        out[n] = call_ratio(ratio, coordinates, mu[n], sigma[n], y[n], theta, values, axes)


@kernel
def grid_lookups(values, axes, mu, sigma, y, out):
    """The same work for a grid: the logarithm, the mirror, the lookup."""
    for n in range(out.size):
        out[n] = bilinear(values, axes, 0, mu[n] * y[n], np.log10(sigma[n]))[0]


def worst(table: object, name: str, mu: np.ndarray, sigma: np.ndarray, y: np.ndarray) -> float:
    """Largest relative error of sigma* against quadrature."""
    truth = project_arrays(name, mu, sigma, y, table="exact").std
    return float(np.abs(project_arrays(name, mu, sigma, y, table=table).std / truth - 1.0).max())


def judged(
    words: str, nanoseconds: float, values: np.ndarray, near: float, beyond: float
) -> list[Row]:
    """Rows on one table: time of a lookup, size, errors on both sides of the grid's edge."""
    return [
        (f"{words}: lookup", nanoseconds, "ns"),
        (f"{words}: size", values.nbytes / 1e3, "KB"),
        (f"{words}: error inside the grid", near, ""),
        (f"{words}: error, sigma 10 to 1000", beyond, ""),
    ]


def lookups(path: str | None) -> list[Row]:
    """Compact tables beside the grid: bytes, errors on both sides of its edges, nanoseconds."""
    rng = np.random.default_rng(3)
    n, few = 1_000_000, 20_000
    mu, sigma, out = rng.uniform(-10, 10, n), 10 ** rng.uniform(-1, 1, n), np.empty(20_000)
    near = mu[:few], sigma[:few]
    far = rng.normal(size=few) * 300.0, 10 ** rng.uniform(1, 3, few)
    sign = rng.choice([-1.0, 1.0], n)
    counts = {"counts 0 to 50": (0, 51), "counts 1 to 500": (1, 501)}
    cases = {"probit": ("probit", sign), "heaviside": ("heaviside", sign)}
    for words, ends in counts.items():
        cases[f"poisson, {words}"] = ("poisson", rng.integers(*ends, n).astype(float))
    rows: list[Row] = []
    for words, (name, y) in cases.items():
        compact = open_table(f"{name}-compact")
        held, theta = compact.source()[3:], compact.likelihood.theta
        seconds = quietest(
            lambda m, s, y, held=held, theta=theta: compact_lookups(*held, m, s, y, theta, out),
            *(mu, sigma, y),
        )
        errors = (worst(None, name, *some, y[:few]) for some in (near, far))
        rows += judged(words, seconds, held[0], *errors)
    if path is not None and Path(path).exists():
        grid = open_table(path)
        values, axes = grid.values, grid.axes()
        seconds = quietest(
            lambda m, s, y: grid_lookups(values, axes, m, s, y, out), mu, sigma, sign
        )
        errors = (worst(grid, "probit", *some, sign[:few]) for some in (near, far))
        rows += judged("probit, grid", seconds, values, *errors)
        rows.append(("probit: lookup / grid: lookup", rows[0][1] / seconds, "x"))
    return rows
