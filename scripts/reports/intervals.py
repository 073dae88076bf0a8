"""The table of 90 % intervals and densities of counts and numbers, from rows of `middle_report`."""

from __future__ import annotations

from typing import Any

__all__ = ["table", "words"]

_SHOWN = ("default", "boosting", "linear", "gpboost")


def table(rows: list[dict[str, Any]]) -> str:
    """A line a set: of every model the share of observations held and the mean log loss."""
    heads = [f"{model}: held | −log p" for model in _SHOWN]
    lines = [
        f"| set | {' | '.join(heads)} | loss (s) |",
        f"| --- | {' | '.join('---: | ---:' for _ in heads)} | ---: |",
    ]
    for row in _with_intervals(rows):
        cells = [_cell(row, model, key) for model in _SHOWN for key in ("coverage", "nlpd")]
        other = row.get("gpboost")
        loss = f"{other['loss']:.4f} ({other['cpu']:.1f} s)" if other else ""
        star = "\\*" if row["chosen"] else ""
        lines.append(f"| {row['set']}{star} | {' | '.join(cells)} | {loss} |")
    return "\n".join(lines)


def words(rows: list[dict[str, Any]]) -> str:
    """What the shares come to, for each kind."""
    found = []
    for kind in ("counts", "numbers"):
        part = [row for row in _with_intervals(rows) if row["kind"] == kind]
        for model in _SHOWN:
            held = [row[model]["coverage"] for row in part if "coverage" in row.get(model, {})]
            if held:
                found.append(
                    f"- 90 % intervals of {kind}, {model}: from {min(held):.3f} to {max(held):.3f} "
                    f"of new rows, {len(held)} {'set' if len(held) == 1 else 'sets'}."
                )
    return "\n".join(found)


def _with_intervals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    chosen = [row for row in rows if "coverage" in row["default"]]
    return sorted(chosen, key=lambda row: (row["kind"], row["set"], row["n"]))


def _cell(row: dict[str, Any], model: str, key: str) -> str:
    value = row.get(model, {}).get(key)
    return "" if value is None else f"{value:.3f}"
