"""One test over many cases, whose failure names every case that fails; calls that are refused.

For rows of one property that cost less than pytest's own handling of a test. What is slow, or needs
a fixture of its own for every row, stays with ``pytest.mark.parametrize``.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable

import pytest

from qpruntime.errors import InputError

# A wall that falls as a whole says no more with its fiftieth case.
_MOST = 40


def every_case(names: str | tuple[str, ...], rows: Iterable) -> Callable[[Callable], Callable]:
    """Run the decorated test once for every row; take arguments as ``parametrize`` does.

    All rows run, also after one has failed. Fixtures are made once for all of them. Two of these
    decorators mean every pair.
    """
    names = tuple(names.replace(" ", "").split(",")) if isinstance(names, str) else names
    rows = [tuple(row) if len(names) > 1 else (row,) for row in rows]
    assert rows, "a test without cases checks nothing"
    assert all(len(row) == len(names) for row in rows), f"every case gives {names}"

    def decorate(test):
        inner, tail = getattr(test, "_cases", (test, [{}]))
        cases = [{**dict(zip(names, row, strict=True)), **more} for row in rows for more in tail]

        @functools.wraps(inner)
        def run(**fixtures):
            failed = []
            for case in cases:
                try:
                    inner(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((case, error))
            if failed:
                raise AssertionError(_report(failed, len(cases))) from failed[0][1]

        run._cases = (inner, cases)
        wanted = inspect.signature(inner).parameters.values()
        kept = [p.replace(kind=p.KEYWORD_ONLY) for p in wanted if p.name not in cases[0]]
        run.__signature__ = inspect.Signature(kept)
        return run

    return decorate


def refuses(words, call, /, *given, error=InputError, **named):
    """Assert that a call raises an error with these words, a regular expression, in its message."""
    __tracebackhide__ = True
    with pytest.raises(error, match=words):
        call(*given, **named)


def _short(value):
    return textwrap.shorten(repr(value), 100, placeholder=" ...")


def _report(failed, count):
    lines = [f"{len(failed)} of {count} cases fail"]
    for case, error in failed[:_MOST]:
        inputs = ", ".join(f"{name}={_short(value)}" for name, value in case.items())
        words = str(error).strip() or "no message"
        lines.append(f"({inputs}): {type(error).__name__}: {words}")
    if len(failed) > _MOST:
        lines.append(f"... and {len(failed) - _MOST} more")
    return "\n".join(lines)
