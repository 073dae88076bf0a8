"""Elliptical slice sampling of the latent function around its normal approximation.

The method is that of Murray, Adams & MacKay (2010), with N(m, V) of a posterior in the place of the
prior and the factors e_j in that of the likelihood. The ellipses then fit, and a step moves far. If
the normal is too narrow, e_j grows in the tails. Every fourth step therefore runs around the prior,
which is wide enough for any tail. Both kinds of steps leave the exact posterior unchanged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime._numba import kernel
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.corrections.density_grid import Densities, between, normalised
from qpruntime.inference.corrections.ep_fact import POINTS
from qpruntime.inference.corrections.tilted import Rule, TiltedMoments, log_factor

__all__ = [
    "CHAINS",
    "Chains",
    "densities_of",
    "mixing",
    "run_chains",
    "split_rhat",
]

#: Number of chains.
CHAINS = 4
#: Number of steps whose ellipses are drawn at once, by one product.
_BLOCK = 1000
#: Largest number of shrinkages of the bracket; a step that finds no point stays where it is.
_SHRINKS = 60
#: One of this many steps runs around the prior.
_PRIOR = 4


class Chains(NamedTuple):
    """Draws of C chains, (C, S, N), thinned to even distances, and diagnostics of mixing.

    rhat : (N,), of split chains, for f and for (f - mean)^2, whichever is larger
    effective : (N,), effective number of draws, likewise the smaller
    """

    draws: Array
    rhat: Array
    effective: Array


@kernel
def log_target(rule: Rule, fixed: TiltedMoments, f: Array, around_prior: bool) -> float:
    """Return the sum over sites of log e_j, or of log p(y_j|f_j), up to constants."""
    total = 0.0
    for j in range(f.size):
        total += log_factor(rule, fixed, j, f[j])
        if around_prior:
            d = f[j] - fixed.mean[j]
            tilt = fixed.nu[j] - fixed.tau[j] * fixed.mean[j]
            total -= d * (0.5 * fixed.tau[j] * d - tilt)
    return total


@kernel
def run_block(
    rule: Rule,
    fixed: TiltedMoments,
    prior: Array,
    f: Array,
    ellipses: Array,
    chances: Array,
    out: Array,
) -> None:
    """Take steps from `f` in place; store the evenly spaced ones that have a row in `out`.

    `ellipses` (B, N) are draws of the normal that a step runs around, without its mean.
    """
    n, steps = f.size, ellipses.shape[0]
    every = steps // out.shape[0]
    trial = np.empty(n)
    for b in range(steps):
        around_prior = b % _PRIOR == _PRIOR - 1
        centre = prior if around_prior else fixed.mean
        level = log_target(rule, fixed, f, around_prior) + math.log(chances[b, 0])
        angle = 2.0 * math.pi * chances[b, 1]
        low, high = angle - 2.0 * math.pi, angle
        for k in range(2, chances.shape[1]):
            c, s = math.cos(angle), math.sin(angle)
            for j in range(n):
                trial[j] = centre[j] + (f[j] - centre[j]) * c + ellipses[b, j] * s
            if log_target(rule, fixed, trial, around_prior) > level:
                f[:] = trial
                break
            if angle < 0.0:
                low = angle
            else:
                high = angle
            angle = low + (high - low) * chances[b, k]
        if b % every == every - 1:
            out[b // every] = f


def root_of(covariance: Array) -> Array:
    """Return a square root of a covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def run_chains(
    rule: Rule,
    fixed: TiltedMoments,
    covariances: tuple[Array, Array],
    prior: Array,
    rng: np.random.Generator,
    *,
    steps: int,
    kept: int,
) -> Chains:
    """Run chains from draws of the normal approximation, after a burn-in of a tenth of the steps.

    Parameters
    ----------
    covariances : V of the normal approximation and K of the prior, each (N, N)
    steps : of every chain
    kept : draws of every chain at most
    """
    roots = [root_of(covariance) for covariance in covariances]
    n = prior.size
    blocks = -(-steps // _BLOCK)
    first = -(-blocks // 10)
    # The number is a divisor of the block, so that draws are evenly spaced.
    kept_of_block = max(
        c for c in (1, 2, 5, 10, 20, 50, 100, 250) if c * blocks <= max(kept, blocks)
    )
    draws = np.empty((CHAINS, blocks * kept_of_block, n))
    for chain, chain_rng in enumerate(rng.spawn(CHAINS)):
        f = fixed.mean + roots[0] @ chain_rng.standard_normal(n)
        for block in range(-first, blocks):
            normals = chain_rng.standard_normal((_BLOCK, n))
            ellipses = np.empty((_BLOCK, n))
            ours = np.arange(_BLOCK) % _PRIOR != _PRIOR - 1
            ellipses[ours] = normals[ours] @ roots[0].T
            ellipses[~ours] = normals[~ours] @ roots[1].T
            chances = 1.0 - chain_rng.random((_BLOCK, _SHRINKS))
            start = max(block, 0) * kept_of_block
            run_block(
                rule,
                fixed,
                prior,
                f,
                ellipses,
                chances,
                draws[chain, start : start + kept_of_block],
            )
        if not np.isfinite(f).all():
            raise NumericalError("a chain has left double precision: rescale the latent function")
    return Chains(draws, *mixing(draws))


def mixing(draws: Array) -> tuple[Array, Array]:
    """Return R-hat and effective number of draws (C, S, N), the worse of f and of (f - mean)^2."""
    diagnostics = [_mixing(part) for part in (draws, (draws - draws.mean(axis=(0, 1))) ** 2)]
    return np.maximum(diagnostics[0][0], diagnostics[1][0]), np.minimum(
        diagnostics[0][1], diagnostics[1][1]
    )


def split_rhat(draws: Array) -> Array:
    """Return R-hat of the halves of chains (Gelman et al., BDA3, 11.4); `draws` is (C, S, N)."""
    half = draws.shape[1] // 2
    parts = np.concatenate([draws[:, :half], draws[:, half : 2 * half]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = parts.mean(axis=1).var(axis=0, ddof=1)
    return np.asarray(np.sqrt(1.0 + between / np.maximum(within, 1e-300) - 1.0 / half))


def _mixing(draws: Array) -> tuple[Array, Array]:
    """Return R-hat and effective number of draws, by Geyer's initial positive sequence."""
    chains, length, n = draws.shape
    rhat = split_rhat(draws)
    effective = np.empty(n)
    size = 2 ** math.ceil(math.log2(2 * length))
    for i in range(n):
        x = draws[:, :, i]
        spectrum = np.fft.rfft(x - x.mean(axis=1, keepdims=True), size, axis=1)
        covariance = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :length].mean(axis=0)
        covariance /= length
        within = covariance[0] * length / (length - 1)
        total = covariance[0] + x.mean(axis=1).var(ddof=1)
        rho = 1.0 - (within - covariance) / max(total, 1e-300)
        pairs = rho[: length // 2 * 2].reshape(-1, 2).sum(axis=1)
        stop = int(np.argmax(pairs <= 0.0)) or pairs.size
        time = -1.0 + 2.0 * np.minimum.accumulate(pairs[:stop]).sum()
        effective[i] = chains * length / max(time, 1.0 / math.log10(chains * length))
    return rhat, effective


# --- Densities of draws

#: Bandwidth in standard deviations for one effective draw; it falls with the fifth root of their
#: number. It is about half of the best one for a normal density, because smoothing harms quantiles
#: more than densities.
_BANDWIDTH = 0.5
_FLOOR = 1e-12


def densities_of(draws: Array, effective: Array) -> Densities:
    """Smooth draws (S, T) by a normal kernel, after shrinking them to keep the variance."""
    mean, std = draws.mean(axis=0), draws.std(axis=0)
    std = np.maximum(std, 1e-300)
    width = np.clip(_BANDWIDTH * effective**-0.2, 0.02, 0.4)
    shrunk = mean + (draws - mean) * np.sqrt(1.0 - width**2)
    low = shrunk.min(axis=0) - 4.0 * width * std
    high = shrunk.max(axis=0) + 4.0 * width * std
    step = (high - low) / (POINTS - 1)
    at = (shrunk - low) / step
    lower = np.minimum(at.astype(np.intp), POINTS - 2)
    share = at - lower
    logs = np.empty((mean.size, POINTS))
    offsets = np.arange(-(POINTS - 1), POINTS)
    for i in range(mean.size):
        # Each draw is split linearly between the two points around it.
        mass = np.bincount(lower[:, i], 1.0 - share[:, i], POINTS)
        mass += np.bincount(lower[:, i] + 1, share[:, i], POINTS)
        kernel = np.exp(-0.5 * (offsets * step[i] / (width[i] * std[i])) ** 2)
        density = np.convolve(mass, kernel)[POINTS - 1 : 2 * POINTS - 1]
        logs[i] = np.log(np.maximum(density, _FLOOR * density.max()))
    return normalised(between(low, high, POINTS), logs)
