"""Available memory, checks before large allocations, and blocks of rows that fit the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qpruntime._formatting import size
from qpruntime.errors import InputError, NumericalError

__all__ = [
    "PointError",
    "address_limit",
    "address_used",
    "cpu_quota",
    "fits",
    "in_blocks",
    "left",
    "memory_left",
    "require",
    "squares",
]


# --- Refuse what cannot fit into memory before anything is allocated.
#
# A refused call could not have succeeded: the need is a lower bound, and all memory that may become
# free counts as available. A call that is let through may still fail.

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]


# Bytes that are not worth a look: below 0.1 s of work for what they hold.
_SMALL = 32e6
_MEMINFO, _STATM = Path("/proc/meminfo"), Path("/proc/self/statm")


def address_limit() -> float:
    """Bytes of address space that this process may have, ``ulimit -v``; infinite without limit."""
    if resource is None:
        return math.inf
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def address_used() -> float:
    """Bytes of address space that this process has; NaN where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return math.nan


def squares(n: int, count: float) -> float:
    """Bytes of so many n x n arrays of doubles."""
    return 8.0 * count * float(n) ** 2


def left() -> tuple[float, str]:
    """Bytes that this process may still take, and in words what leaves it no more."""
    known: dict[str, float] = {}
    try:
        for line in _MEMINFO.read_text().splitlines():
            name, _, amount = line.partition(":")
            known[name] = 1024.0 * float(amount.split()[0])
    except OSError:
        pass
    swap = known.get("SwapFree", 0.0)
    ways = [
        (known.get("MemAvailable", math.inf) + swap, "by the machine"),
        (memory_left(swap), "by the limit of its control group, as of a container"),
    ]
    limit = address_limit()
    if limit < math.inf and (used := address_used()) < math.inf:
        ways.append((max(limit - used, 0.0), "by the limit on its address space, ulimit -v"))
    return min(ways)


def fits(nbytes: float) -> bool:
    """Decide whether this process may take so many more bytes."""
    return nbytes < _SMALL or nbytes <= left()[0]


def require(nbytes: float, what: str, remedy: str) -> None:
    """Raise `InputError` if this process may not take so many more bytes, the least it will.

    Parameters
    ----------
    nbytes : float
    what : str
        What takes them: begins the message.
    remedy : str
        What to do instead: ends it.
    """
    if nbytes < _SMALL:
        return
    available, by = left()
    if nbytes > available:
        raise InputError(
            f"{what} takes {size(nbytes)} of memory at least, and this process is left "
            f"{size(available)} {by}: {remedy}"
        )


# --- What control groups, which containers are made of, leave this process: cores and memory.
#
# Both versions are read; a file that is not there limits nothing.

_MEMBERSHIP, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# File caches are given back when memory runs short.
_CACHES = {"total_inactive_file", "total_active_file", "inactive_file", "active_file"}


def cpu_quota() -> float:
    """Cores that this process may be busy on at a time, on average; infinite without a quota."""
    least = math.inf
    for group in _groups("cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = (_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        allowed, per = _number(quota), _number(period)
        if 0.0 < allowed < math.inf and 0.0 < per < math.inf:
            least = min(least, allowed / per)
    return least


def memory_left(swap: float = 0.0) -> float:
    """Bytes that may still be taken, caches of files counted as free; infinite without a limit.

    Parameters
    ----------
    swap : float
        Bytes of swap that the machine has free.
    """
    least = math.inf
    for group in _groups("memory"):
        room = swap
        if limit := _read(group / "memory.max"):
            used = _read(group / "memory.current")
            if more := _read(group / "memory.swap.max"):
                swapped = _read(group / "memory.swap.current")
                room = min(room, max(_number(more) - _number(swapped or "0"), 0.0))
        else:
            limit = _read(group / "memory.limit_in_bytes")
            used = _read(group / "memory.usage_in_bytes")
        if _number(limit) < math.inf and used:
            least = min(least, _number(limit) - _number(used) + _cached(group) + room)
    return max(least, 0.0)


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the groups that this process is in, from its own to the root."""
    for line in _read(_MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top = _MOUNT
        elif controller in controllers.split(","):
            top = _MOUNT / controllers
            top = top if top.exists() else _MOUNT / controller
        else:
            continue
        group = top / path.lstrip("/")
        # The path may be the host's if this is a container: its folder is then invisible, but the
        # root is not.
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _cached(group: Path) -> float:
    """Bytes of the group, and of those below it, that hold files.

    Version 1 tells both its own and totals.
    """
    counts = dict(line.split(" ", 1) for line in _read(group / "memory.stat").splitlines())
    totals = [name for name in _CACHES if name.startswith("total") and name in counts]
    names = totals or [name for name in _CACHES if name in counts]
    return sum(_number(counts[name]) for name in names)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> float:
    """Return the number that a file has; infinity for "max" and what is no number."""
    try:
        value = float(text)
    except ValueError:
        return math.inf
    # Version 1 has a page less than 2^63 for no limit.
    return value if value < 2.0**62 else math.inf


# --- Long arrays in blocks of rows: what is computed on the way stays in the cache, and small.

#: An array, or a tuple of arrays, with a row for each of the slice.
T = TypeVar("T")
# Numbers in a matrix of one block, 4 MB. A covariance function of scikit-learn holds some five
# such at a time; blocks of a quarter or of four times that are no faster at N = 500.
_NUMBERS = 2**19
# Fewer rows than that leave triangular solves waiting for memory.
_FEWEST = 32


class PointError(NumericalError):
    """Double precision does not suffice at one row; `args` are its index and what is wrong."""

    def __str__(self) -> str:
        return f"point {self.args[0]} {self.args[1]}"


def in_blocks(function: Callable[[slice], T], rows: int, width: int) -> T:
    """Call a function with slices of `rows` rows, one after the other, and join what it returns.

    Parameters
    ----------
    function : callable
        ``function(some)`` returns an array, or a tuple of arrays, with a row for each of the slice.
    rows : int
    width : int
        Numbers in a row of the matrices that it makes.

    Returns
    -------
    ndarray or tuple of ndarray

    Raises
    ------
    PointError
        Of the function, with the index among all rows.
    """
    step = max(_FEWEST, _NUMBERS // max(width, 1))
    whole: tuple[Any, ...] = ()
    single = False
    for start in range(0, max(rows, 1), step):
        block = slice(start, min(start + step, rows))
        try:
            results = function(block)
        except PointError as error:
            raise PointError(start + error.args[0], error.args[1]) from error.__cause__
        if block == slice(0, rows):
            return results
        parts: tuple[Any, ...] = results if isinstance(results, tuple) else (results,)
        if not whole:
            single = not isinstance(results, tuple)
            whole = tuple(np.empty((rows, *part.shape[1:]), part.dtype) for part in parts)
        for array, part in zip(whole, parts, strict=True):
            array[block] = part
    return whole[0] if single else whole  # type: ignore[return-value]
