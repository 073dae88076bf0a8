"""Every registered likelihood keeps the contract; one more file is all that one more takes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from qpruntime import InputError, likelihoods
from qpruntime._pointers import FRAME, Pointer
from tests.tools.commands import python
from tests.tools.conformance import conforms

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize("name", likelihoods.names())
def test_conforms(name):
    conforms(likelihoods.get(name))


def test_a_frame_of_the_wrong_kind_is_refused():
    """Kernels would take its address for that of a cell, and crash."""
    with pytest.raises(InputError, match="frame of 'probit' is a Pointer: give a LatePointer"):
        replace(likelihoods.get("probit"), frame=Pointer(lambda *values: values, FRAME))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "source", "kind", "steps"),
    [
        (
            "cauchit.py",
            TOP / "docs" / "cauchit.py",
            "labels",
            ["conforms", "grid", "surfaces", "infer", "classifier"],
        ),
        (
            "poisson_exp2.py",
            TOP / "tests" / "tools" / "doubled.py",
            "counts",
            ["conforms", "regressor"],
        ),
    ],
)
def test_a_likelihood_is_one_file(tmp_path, file, source, kind, steps):
    """A file in another folder, which stands for that of the package, and nothing else."""
    folder = tmp_path / "more"
    folder.mkdir()
    shutil.copy(source, folder / file)
    words = "-W", "error", "-m", "tests.tools.added", folder, kind
    run = python(*words, cwd=tmp_path, environment={"PYTHONPATH": str(TOP)})
    assert run.stdout.split() == steps
