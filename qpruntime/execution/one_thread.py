"""One BLAS thread, for as long as some thread of this process is at work for us.

Two levels of threads get in each other's way, and products have the same bits everywhere only if
as many threads multiply.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]

_limit: Any = None
_limited = 0
_limiting = threading.Lock()


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Find the libraries that are loaded, which takes milliseconds, once for so many modules."""
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS while any thread of this process is at work for us: limits do not nest."""
    global _limit, _limited
    with _limiting:
        if _limited == 0:
            _limit = _libraries(len(sys.modules)).limit(limits=1, user_api="blas")
        _limited += 1
    try:
        yield
    finally:
        with _limiting:
            _limited -= 1
            if _limited == 0:
                _limit.restore_original_limits()
