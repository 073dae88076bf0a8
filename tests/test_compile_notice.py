"""While kernels compile nothing looks for garbage; afterwards all is as it was."""

import gc
from types import SimpleNamespace

import pytest

from qpruntime._compile_notice import Notice


def event(module):
    data = {"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module))}
    return SimpleNamespace(data=data)


@pytest.fixture
def notice():
    was = gc.isenabled()
    made = Notice(lambda: None)
    made.silent = True
    yield made
    gc.enable() if was else gc.disable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(notice, enabled):
    gc.enable() if enabled else gc.disable()
    outer, inner = event("qpruntime._special"), event("qpruntime.projection.site_kernel")
    notice.on_start(outer)
    assert not gc.isenabled()
    notice.on_start(inner)
    notice.on_end(inner)
    assert not gc.isenabled()
    notice.on_end(outer)
    assert gc.isenabled() == enabled
    # Kernels of others are left alone.
    for call in (notice.on_start, notice.on_end):
        call(event("somebody.else"))
        assert gc.isenabled() == enabled
    assert notice.count == 2
