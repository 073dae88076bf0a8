"""Without JAX: the import says which extra brings it."""

import sys

import pytest


@pytest.mark.parametrize("missing", ["jax", "optax"])
def test_names_the_extra(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith("qpruntime.deep")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"and optax: run pip install '\.\[deep\]' in a checkout"):
        import qpruntime.deep  # noqa: F401
