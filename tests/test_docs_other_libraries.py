"""docs/other-libraries.md: every block runs, as far as its library is installed."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "other-libraries.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
#: What stands in a block that needs an extra; the block of JAX is run first, for its data.
EXTRAS = ("jax", "torch", "gpytorch", "GPy")


def needed(block):
    return {name for name in EXTRAS if re.search(rf"^(import|from) {name}\b", block, re.MULTILINE)}


def run(blocks):
    """Run blocks in one namespace; return what they print."""
    names: dict = {"__name__": "page"}
    with redirect_stdout(io.StringIO()) as out:
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), names)
    return out.getvalue().split()


def test_without_an_extra():
    plain = [block for block in BLOCKS if not needed(block)]
    assert len(plain) == 2
    assert run(plain) == ["True"] * 2


@pytest.mark.slow
def test_all_of_it():
    missing = [name for name in EXTRAS if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    import jax

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of these libraries, on import
        try:
            assert run(BLOCKS) == ["True"] * 8
        finally:
            jax.config.update("jax_enable_x64", False)
