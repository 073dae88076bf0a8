"""The progress bar of the command line: on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar", "transferred"]

_WORDS = {
    "connect": "waiting for workers",
    "integrate": "integrating",
    "fill": "filling",
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
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """Time left at the mean rate: steps end in bursts, which rich's own estimate overrates."""

        def render(self, task: Task) -> Text:
            done = task.completed - task.fields["first"]
            if task.total is None or not task.elapsed or done <= 0:
                return Text("")
            seconds = round((task.total - task.completed) * task.elapsed / done)
            return Text(f"{seconds // 60}:{seconds % 60:02d} left")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeLeft(),
    )
    stages: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        # Compiling kernels takes half a minute, once per machine and version.
        start = display.add_task("preparing (the first run compiles)", total=1, first=0)

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                for earlier in (start, *stages.values()):
                    display.update(earlier, visible=False)
                words = _WORDS.get(stage, stage)
                stages[stage] = display.add_task(words, total=total, first=done)
            display.update(stages[stage], completed=done, total=total)

        yield progress


@contextmanager
def transferred() -> Iterator[Callable[[int, int | None], None] | None]:
    """Yield a ``report(there, total)`` that draws bytes and speed, or None off a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def report(there: int, total: int | None) -> None:
            progress.update(task, completed=there, total=total)

        yield report
