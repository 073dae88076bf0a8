"""Refuse what cannot fit into memory before anything is allocated.

What is refused could not have been done: needs are the least there are, and all that may be had
counts as there. What is let through may still fail.
"""

from __future__ import annotations

import math
from pathlib import Path

from qpruntime import cgroups
from qpruntime.errors import InputError
from qpruntime.names import size

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

__all__ = ["address_limit", "address_used", "fits", "left", "require", "squares"]

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
        (cgroups.memory_left(swap), "by the limit of its control group, as of a container"),
    ]
    limit = address_limit()
    if limit < math.inf and (used := address_used()) < math.inf:
        ways.append((max(limit - used, 0.0), "by the limit on its address space, ulimit -v"))
    return min(ways)


def fits(nbytes: float) -> bool:
    """Whether this process may take so many more bytes."""
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
    there, by = left()
    if nbytes > there:
        raise InputError(
            f"{what} takes {size(nbytes)} of memory at least, and this process is left "
            f"{size(there)} {by}: {remedy}"
        )
