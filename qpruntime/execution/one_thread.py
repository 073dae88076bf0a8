"""One BLAS thread, for as long as some thread of this process is at work for us.

Two levels of threads get in each other's way, and products have the same bits everywhere only if
as many threads multiply.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

__all__ = ["one_blas_thread"]

_limit: Any = None
_limited = 0
_limiting = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS while any thread of this process is at work for us: limits do not nest."""
    global _limit, _limited
    with _limiting:
        if _limited == 0:
            _limit = threadpool_limits(1, "blas")
        _limited += 1
    try:
        yield
    finally:
        with _limiting:
            _limited -= 1
            if _limited == 0:
                _limit.restore_original_limits()
