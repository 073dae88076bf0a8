"""The certificate of a table in one line: where it holds, how well, and how that was measured."""

from __future__ import annotations

from qpruntime import likelihoods
from qpruntime.table_format.metadata import Metadata
from tablegen.compact import errors as regions

__all__ = ["SURFACE_WORDS", "guarantee", "outcomes_in_words"]

SURFACE_WORDS = {
    "log_z": "of log Z",
    "mean": "of mean",
    "std_ep": "of sigma_EP",
    "std_qp": "of sigma*",
    "mean_wp": "of wp mean",
    "std_wp": "of wp deviation",
}


def guarantee(metadata: Metadata) -> str:
    """Say in one line where the table holds, how well, and how that was measured."""
    certificate = metadata.certificate
    try:
        if metadata.kind == "compact":
            words = likelihoods.get(metadata.likelihood).outcomes
            low, high = regions.DOMAIN
            worst = max(certificate[name]["max_relative_error"] for name in regions.REGIONS)
            count = sum(certificate[name]["points"] for name in regions.REGIONS)
            return (
                "every finite mu, sigma {:g} to {:g}, {}: relative error of sigma* below {:g}; "
                "largest found {:.2g} at {} points by a second quadrature rule"
            ).format(10.0**low, 10.0**high, words, certificate["tolerance"], worst, count)
        if metadata.kind == "surfaces":
            return _of_surfaces(metadata)
        nodes, cells = certificate["nodes"], certificate["cells"]
        return (
            "mu {:g} to {:g}, log10 sigma {:g} to {:g}, y = {}: relative error of sigma* {:.2g} "
            "between nodes (bilinear), {:.2g} at nodes, the largest found at {} points by a second "
            "quadrature rule; outside: sigma_EP, or quadrature on request"
        ).format(
            metadata.mu.start,
            metadata.mu.stop,
            metadata.log10_sigma.start,
            metadata.log10_sigma.stop,
            "-1 and 1" if metadata.outcomes == [1.0] else outcomes_in_words(metadata.outcomes),
            cells["max_relative_error"],
            nodes["max_relative_error"],
            nodes["points"] + cells["points"],
        )
    except (TypeError, KeyError, ValueError):
        return "none: the errors of this table were not measured"


def _of_surfaces(metadata: Metadata) -> str:
    certificate, (mu, log10_sigma) = metadata.certificate, metadata.axes[:2]
    mode = metadata.traits["mode"]
    observations = {"mirror": "-1 and 1", "location": "any"}.get(
        mode, outcomes_in_words(metadata.outcomes)
    )
    errors = [
        f"{certificate[name]['max_relative_error']:.2g} {SURFACE_WORDS[name]}"
        for name in metadata.surfaces
    ]
    rule, outside = "a second quadrature rule", "quadrature if the code is at hand, else an error"
    if metadata.order is not None:
        rule, outside = "a Newton step by a second quadrature rule", "an error"
    return (
        f"{'mu - y' if mode == 'location' else 'mu'} {mu.start:g} to {mu.stop:g}, log10 sigma "
        f"{log10_sigma.start:g} to {log10_sigma.stop:g}, y = {observations}: errors below "
        f"{certificate['tolerance']:g}; largest found {', '.join(errors)} "
        f"at {certificate['random_points']} points by {rule}; outside: {outside}"
    )


def outcomes_in_words(outcomes: list[float]) -> str:
    """Return the first and the last of them."""
    first, last = outcomes[0], outcomes[-1]
    return f"{first:g}" if first == last else f"{first:g} to {last:g}"
