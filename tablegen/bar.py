"""The progress bar of the command line: on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar"]

_WORDS = {
    "integrate": "integrating",
    "fill": "filling chunks",
    "export": "writing",
    "certify": "certifying",
    "scan": "reading",
}


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a ``progress(stage, done, total)`` that draws a bar, or None off a terminal.

    Colours follow NO_COLOR; the bar is gone when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: object) -> Text:
            speed = getattr(task, "speed", None)
            return Text(f"{speed:.1f} chunks/s" if speed else "")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        Rate(),
        TimeRemainingColumn(),
    )
    stages: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        start = drawn.add_task("preparing (the first run compiles)", total=1)

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                for earlier in (start, *stages.values()):
                    drawn.update(earlier, visible=False)
                stages[stage] = drawn.add_task(_WORDS.get(stage, stage), total=total)
            drawn.update(stages[stage], completed=done, total=total)

        yield progress
