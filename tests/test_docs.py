"""The pages in docs/: every block of Python runs, in order, and every command of the shell too."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

from tablegen.console.cli import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)


def test_there_are_pages():
    assert [page.name for page in PAGES] == ["bring-your-own-likelihood.md", "defaults.md"]
    for page in PAGES:
        # Two pages of print.
        assert len(page.read_text().splitlines()) < 150


def run(page, capsys):
    """Run every block, and return what each one of Python prints."""
    names: dict = {"__name__": "page"}
    printed = []
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page.name, "exec"), names)
            printed.append(out.getvalue())
        else:
            for command in text.splitlines():
                arguments = command.split()
                assert arguments.pop(0) == "tablegen"
                if arguments[0] == "build":
                    arguments.append("--force")
                assert main(arguments) == 0, capsys.readouterr().err
    return printed


def test_defaults(capsys):
    kernel, evidence = run(DOCS / "defaults.md", capsys)
    assert re.fullmatch(
        r"[\d.]+\*\*2 \+ [\d.]+\*\*2 \* Matern\(length_scale=.*, nu=2.5\)\n", kernel
    )
    assert -80 * 0.7 < float(evidence) < 0.0


def test_bring_your_own_likelihood(tmp_path, monkeypatch, capsys):
    page = DOCS / "bring-your-own-likelihood.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # The module that the shell is told of.
    Path("ratings.py").write_text(BLOCK.findall(page.read_text())[0][1])
    printed = run(page, capsys)
    sys.modules.pop("ratings", None)
    assert printed[0] == "True -20.711\n"
    assert printed[1].startswith("True Lookups(inside=")
    assert printed[1].endswith("outside=0)\n")
    assert printed[2] == "3.0481 1.3962 1.5635\n"
    assert "log_prob of forgetful raised KeyError: 'no entry'" in printed[3]
    for line, truth in zip(printed[4].splitlines(), (0.5**0.5, 0.9031972856), strict=True):
        value, error = (float(v) for v in line.split(",")[0].split(" ± "))
        assert abs(value - truth) < 4.0 * error < 0.1
