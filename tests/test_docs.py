"""The pages in docs/: Python runs in order, commands of tablegen work, links lead somewhere."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from qpruntime.__main__ import parser
from qpruntime.warmup import GROUPS
from scripts import command_line
from scripts.benchmarks.speed import SECTIONS
from scripts.reports import pages
from tablegen.console.cli import main
from tablegen.surfaces import build as surface_build
from tablegen.surfaces import errors as surface_errors
from tablegen.surfaces import node_counts
from tests.tools.cases import every_case

TOP = Path(__file__).parents[1]
PAGES = sorted((TOP / "docs").glob("*.md"))
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
#: Pages whose blocks have tests of their own, of which `tests/deep` has one.
ELSEWHERE = {
    *("bring-your-own-likelihood", "deep", "defaults", "from-other-libraries"),
    "other-libraries",
}
RUN = sorted(p.stem for p in PAGES if "```python\n" in p.read_text() and p.stem not in ELSEWHERE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def run(page, tmp_path, monkeypatch):
    """Run the Python blocks of a page in order, in one namespace; return what each printed."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    printed = []
    for text in [text for kind, text in BLOCK.findall(page.read_text()) if kind == "python"]:
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(text, page.name, "exec"), names)
        printed.append(out.getvalue())
    return printed


def test_every_page_is_of_one_subject():
    for page in PAGES:
        text = page.read_text()
        if text.startswith("```{include}"):
            continue  # shows a file from outside
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page
        # Two pages of print, but for formulas and the tables that a script writes.
        typed = re.sub(r"<!-- begin .*?<!-- end |\$\$.*?\$\$", "", text, flags=re.DOTALL)
        assert len(typed.splitlines()) < 150, page


@every_case("page", [*PAGES, TOP / "README.md", TOP / "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", RUN)
def test_python_of_a_page(name, tmp_path, monkeypatch):
    printed = run(TOP / "docs" / f"{name}.md", tmp_path, monkeypatch)
    assert printed
    # What a page prints are checks and shapes: none of them fails.
    assert "False" not in "".join(printed)


PEERS = ["sklearn", "GPy", "gpytorch", "gpboost"]


@pytest.mark.parametrize("library", PEERS)
@pytest.mark.filterwarnings("ignore")
def test_the_same_model_elsewhere(library):
    """The first block of the page, and that of a library which is installed."""
    pytest.importorskip(library, reason=f"{library} is not installed: no extra of ours brings it")
    page = (TOP / "docs" / "from-other-libraries.md").read_text()
    own, *others = [text for kind, text in BLOCK.findall(page) if kind == "python"]
    (theirs,) = (text for text in others if re.match(rf"(?:import|from) {library}\b", text))
    names: dict = {"__name__": "page"}
    with redirect_stdout(io.StringIO()) as out:
        for text in (own, theirs):
            exec(compile(text, library, "exec"), names)
    said = out.getvalue().split()
    assert "True" in said
    assert "False" not in said
    # Another model would be as near where all probabilities are about a half.
    assert np.ptp(names["p"]) > 0.9


def test_blocks_of_all_pages_are_run():
    """Here, or by name elsewhere: what is neither would be shown and never run."""
    with_code = {
        p.stem for p in PAGES if any(k == "python" for k, _ in BLOCK.findall(p.read_text()))
    }
    assert with_code == {*RUN, *ELSEWHERE}


def test_defaults(tmp_path, monkeypatch):
    kernel, chosen, evidence = run(TOP / "docs" / "defaults.md", tmp_path, monkeypatch)
    assert chosen.startswith("dense [(40, 'Matérn 2.5')")
    assert re.fullmatch(
        r"[\d.]+\*\*2 \+ [\d.]+\*\*2 \* Matern\(length_scale=.*, nu=2.5\)\n", kernel
    )
    assert -80 * 0.7 < float(evidence) < 0.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_understood(page, tmp_path, monkeypatch, capsys):
    """Builds are tried dry: what they would do is planned and printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    for kind, text in BLOCK.findall(page.read_text()):
        for command in text.splitlines() if kind == "sh" else ():
            words = shlex.split(command, comments=True)
            if words[:2] == ["tablegen", "build"] and "ratings:rating" not in words:
                assert main([*words[1:], "--dry-run"]) == 0, capsys.readouterr().err
            elif words[:2] in (["tablegen", "publish"], ["tablegen", "fetch"]):
                assert main(words[1:]) == 0, capsys.readouterr().err
            elif words[:3] == ["python", "-m", "qpruntime"]:
                assert set(parser().parse_args(words[3:]).groups) <= set(GROUPS), command
            elif words[:2] == ["python", "-m"]:
                # Options are understood: the parser leaves the process where they are not.
                room, name = words[2].removeprefix("scripts."), words[3]
                assert command_line.parsed(room, name, words[4:]), command
            elif words and words[0] in ("python", "sh"):
                assert (TOP / words[1]).is_file(), command


def test_bring_your_own_likelihood(tmp_path, monkeypatch, capsys):
    page = TOP / "docs" / "bring-your-own-likelihood.md"
    monkeypatch.syspath_prepend(tmp_path)
    # Its tables are certified at fewer points than those of users: `tests/projection` has more.
    monkeypatch.setattr(surface_errors, "POINTS", 300)
    blocks = BLOCK.findall(page.read_text())
    # The module that the shell is told of.
    (tmp_path / "ratings.py").write_text(blocks[0][1])
    with monkeypatch.context() as few:
        few.setattr(surface_errors, "POINTS", 100)
        few.setattr(surface_build, "_CHECKS", 300)
        few.setattr(node_counts, "_LINES", (0.0, 0.33, 0.5, 0.84, 1.0))
        printed = run(page, tmp_path, monkeypatch)
    for command in "".join(text for kind, text in blocks if kind == "sh").splitlines():
        arguments = shlex.split(command)
        assert arguments.pop(0) == "tablegen"
        if arguments[0] == "build":
            # Python on this page has built the same table to 1e-6.
            arguments += ["--force", "--tolerance", "1e-3"]
        elif arguments[0] == "verify":
            # Any points may find more than the few that certified it.
            arguments += ["--points", "300", "--seed", "0"]
        assert main(arguments) == 0, capsys.readouterr().err
    sys.modules.pop("ratings", None)
    assert printed[0] == "True -20.711\n"
    assert printed[1].startswith("True Lookups(inside=")
    assert printed[1].endswith("outside=0)\n")
    assert printed[2] == "3.0481 1.3962 1.5635\n"
    assert "log_prob of forgetful raised KeyError: 'no entry'" in printed[3]
    for line, truth in zip(printed[4].splitlines(), (0.5**0.5, 0.9031972856), strict=True):
        value, error = (float(v) for v in line.split(",")[0].split(" ± "))
        assert abs(value - truth) < 4.0 * error < 0.1


def test_numbers_on_pages_are_those_of_the_kept_results():
    """``python -m scripts.reports pages`` writes them; accuracy is tested elsewhere."""
    for page, parts in pages.PAGES.items():
        text = (TOP / "docs" / page).read_text()
        cheap = {name: make for name, make in parts.items() if name != "accuracy"}
        assert pages.written(text, cheap) == text, f"python -m scripts.reports pages {page}"


def test_a_mark_that_is_missing_is_an_error():
    with pytest.raises(ValueError, match="0 places are marked 'fits'"):
        pages.written("no marks", {"fits": lambda: ""})


def test_the_kept_benchmark_has_every_section():
    kept = json.loads((TOP / "tables" / "results" / "bench.json").read_text())
    assert set(kept["results"]) == set(SECTIONS)
