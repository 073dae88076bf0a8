"""docs/other-libraries.md: every block runs, as far as its library is installed."""

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
    """Run blocks in one namespace; return it, and what they print."""
    names: dict = {"__name__": "page"}
    with redirect_stdout(io.StringIO()) as out:
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), names)
    return names, out.getvalue().splitlines()


def test_without_an_extra():
    plain = [block for block in BLOCKS if not needed(block)]
    assert len(plain) == 2
    names, printed = run(plain)
    assert names["d_mu"] == pytest.approx(-1.824031356456717, abs=1e-12)
    assert float(printed[-1].split()[-1]) == pytest.approx(2.0 * 0.825215532323, abs=1e-9)


@pytest.mark.slow
def test_all_of_it():
    missing = [name for name in EXTRAS if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    import jax

    with warnings.catch_warnings(action="ignore"):  # of these libraries, on import
        try:
            _, printed = run(BLOCKS)
        finally:
            jax.config.update("jax_enable_x64", False)
    differences = [float(line.split()[-1]) for line in printed if "difference from infer" in line]
    for difference, most in zip(differences, (1e-8, 1e-8, 1e-5), strict=True):
        assert difference < most
