"""The gallery: every example runs without a warning, draws, has a title, and is quick.

Three cheap ones run by default, all others with the slow suites.
"""

import ast
import re
import runpy
import time
from pathlib import Path

import pytest

from qpruntime import _numba
from tests.tools.cases import every_case

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
EXAMPLES = sorted(GALLERY.glob("plot_*.py"))
CHEAP = ("plot_05_counts_with_exposure", "plot_08_sigma_star_maps")
#: What an example may take, seconds on one core once kernels are compiled.
LONGEST = 30.0


def run(path, tmp_path, monkeypatch):
    """Run an example as a script; return its figures, and CPU seconds if nothing was compiled."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    pyplot.close("all")
    compiled, begun = _numba.compilations(), time.process_time()
    try:
        runpy.run_path(str(path), run_name="__main__")
        taken = time.process_time() - begun
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        for figure in figures:
            figure.savefig(tmp_path / "drawn.png")
    finally:
        pyplot.close("all")
    return figures, taken if _numba.compilations() == compiled else 0.0


def named(ax):
    """Whether ticks of the vertical axis are words."""
    return any(tick.get_text()[:1].isalpha() for tick in ax.get_yticklabels())


@pytest.mark.parametrize(
    "name",
    [pytest.param(p.stem, marks=[pytest.mark.slow] * (p.stem not in CHEAP)) for p in EXAMPLES],
)
def test_an_example(name, tmp_path, monkeypatch, record_property):
    figures, seconds = run(GALLERY / f"{name}.py", tmp_path, monkeypatch)
    record_property("seconds", seconds)
    assert figures
    for figure in figures:
        # What is on the axes is said.
        axes = [*figure.axes, *(inset for ax in figure.axes for inset in ax.child_axes)]
        assert any(ax.get_xlabel() for ax in axes)
        # Ticks may be names, or there are none.
        assert any(ax.get_ylabel() or not len(ax.get_yticks()) or named(ax) for ax in axes)
    assert seconds < LONGEST


@every_case("path", EXAMPLES)
def test_an_example_is_a_page(path):
    """A title, cells of prose, a screen or two of code, and figures that are shown."""
    text = path.read_text()
    title, line, blank, *body = ast.get_docstring(ast.parse(text)).splitlines()
    assert line == "=" * len(title)
    assert blank == ""
    assert len(" ".join(body)) > 100
    assert len(re.findall(r"^# %%$", text, re.MULTILINE)) >= 2
    assert 40 <= len(text.splitlines()) <= 150
    assert text.endswith("plt.show()\n")
    # A single backtick is a reference, which may lead nowhere.
    prose = [ast.get_docstring(ast.parse(text)), *re.findall(r"^# .*$", text, re.MULTILINE)]
    assert not re.findall(r"(?<!`)`[^`]+`(?!`)", "\n".join(prose))
