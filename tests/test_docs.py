"""The pages in docs/: Python runs in order, commands of tablegen work, links lead somewhere."""

import importlib
import io
import json
import re
import shlex
import sys
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from qpruntime.__main__ import parser
from qpruntime.warmup import GROUPS
from scripts import command_line
from scripts.benchmarks.speed import SECTIONS
from scripts.reports import charts, pages
from tablegen.console.cli import main
from tablegen.surfaces import build, errors as surface_errors, node_counts
from tests.tools.cases import every_case

TOP = Path(__file__).parents[1]
PAGES = sorted((TOP / "docs").glob("*.md"))
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
#: Pages whose blocks have tests of their own, of which `tests/deep` has one.
ELSEWHERE = {"bring-your-own-likelihood", "deep", "from-other-libraries", "other-libraries"}
RUN = sorted(p.stem for p in PAGES if "```python\n" in p.read_text() and p.stem not in ELSEWHERE)
#: Pages that take more than two seconds, which the slow run has.
LONG = {
    *("adding", "bayesian-optimisation", "case-districts", "case-shops", "classes", "data-frames"),
    *("effects", "forecasts", "million-rows", "model-criticism", "monotone", "regression"),
    "survival-times",
}
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def python_of(page):
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == "python"]


def run(blocks):
    """Run blocks in order, in one namespace; return it, and what each printed."""
    names: dict = {"__name__": "page"}
    printed = []
    for text in blocks:
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(text, "page", "exec"), names)
        printed.append(out.getvalue())
    return names, printed


def shown(text, name, monkeypatch):
    """Return what the site shows under each block, without blocks that need a missing extra."""
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    monkeypatch.syspath_prepend(TOP / "docs" / "site")
    pages = importlib.import_module("executed_pages")
    absent = [extra for extra in ("onnx", "jax", "torch") if not find_spec(extra)]
    wanted = [
        block
        for block in pages.blocks(text)
        if not any(re.search(rf"^from {extra}\b", block, re.MULTILINE) for extra in absent)
    ]
    return pages.run("\n".join(f"```python\n{block}```" for block in wanted), name)


def test_every_page_is_of_one_subject():
    for page in PAGES:
        text = page.read_text()
        if text.startswith("```{include}"):
            continue  # shows a file from outside
        bare = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        assert len(re.findall(r"^# ", bare, re.MULTILINE)) == 1, page
        # Two pages of print, but for code, formulas and the tables that a script writes.
        typed = re.sub(r"<!-- begin .*?<!-- end |\$\$.*?\$\$", "", bare, flags=re.DOTALL)
        assert len(typed.splitlines()) < 150, page


@every_case("page", [*PAGES, TOP / "README.md", TOP / "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "name", [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in RUN]
)
def test_python_of_a_page(name, monkeypatch):
    results = shown((TOP / "docs" / f"{name}.md").read_text(), name, monkeypatch)
    assert any(result.text or result.figures for result in results)
    printed = "".join(result.text for result in results)
    assert "nan" not in re.findall(r"\w+", printed)
    assert "qpruntime: compiling" not in printed


def test_a_page_shows_output_and_figures_under_the_code(monkeypatch, tmp_path):
    code = (
        "print(1 + 1)",
        "import matplotlib.pyplot as plt\nax = plt.subplots()[1]",
        "from pathlib import Path\nprint(Path('docs/data/air_passengers.csv').read_text()[:16])",
    )
    text = "# Page\n\n" + "\n\n".join(f"```python\n{one}\n```" for one in code)
    two, figure, months = shown(text, "page", monkeypatch)
    assert (two.text, two.figures) == ("2\n", [])
    assert figure.figures[0].startswith(b"\x89PNG")
    assert months.text == "month,passengers\n"
    page = importlib.import_module("executed_pages").with_results(text, "page", tmp_path)
    assert "print(1 + 1)\n```\n\n````{code-block} text\n:class: output\n\n2\n````" in page
    assert "```{image} auto_pages/page-1.png" in page
    assert (tmp_path / "auto_pages" / "page-1.png").read_bytes() == figure.figures[0]


def test_a_page_that_fails_names_its_block(monkeypatch):
    with pytest.raises(ZeroDivisionError) as caught:
        shown("```python\nx = 1\n```\n```python\nx / 0\n```", "page", monkeypatch)
    assert str(caught.traceback[-1].path).endswith("page, block 2")


GUIDE = [
    name
    for name in re.findall(r"\]\(([\w-]+)\.md\)", (TOP / "docs" / "guide.md").read_text())
    if not name.startswith("case-")
]


@every_case("name", sorted(set(GUIDE)))
def test_a_page_of_the_guide_has_its_parts(name):
    """What the reader can do, code, a table of options, limits; and few words."""
    text = (TOP / "docs" / f"{name}.md").read_text()
    assert re.match(r"# .+\n\nHere you ", text)
    assert "```python\n" in text
    assert "| name | default | meaning | when to change it |" in text
    assert re.search(r"^## (Limits and failures|Errors in your function)", text, re.MULTILINE)
    assert len(text.split()) < 1300


#: Largest differences of a probability: Laplace's approximation, EP, a variational bound.
PEERS = {"sklearn": 0.1, "GPy": 0.01, "gpytorch": 0.02, "gpboost": 0.1}


@pytest.mark.parametrize("library", PEERS)
@pytest.mark.filterwarnings("ignore")
def test_the_same_model_elsewhere(library):
    """The first block of the page, and that of a library which is installed."""
    pytest.importorskip(library, reason=f"{library} is not installed: no extra of ours brings it")
    own, *others = python_of(TOP / "docs" / "from-other-libraries.md")
    (theirs,) = (text for text in others if re.match(rf"(?:import|from) {library}\b", text))
    names, _ = run([own, theirs])
    evidence = names["ours"].log_marginal_likelihood_value_
    assert evidence == pytest.approx(-43.936, abs=0.01)
    assert np.abs(names["p"] - names["q"]).max() < PEERS[library]
    if library == "GPy":
        assert names["model"].log_likelihood() == pytest.approx(evidence, abs=0.01)
    # Another model would be as near where all probabilities are about a half.
    assert np.ptp(names["p"]) > 0.9


def test_blocks_of_all_pages_are_run():
    """Here, or by name elsewhere: what is neither would be shown and never run."""
    assert {page.stem for page in PAGES if python_of(page)} == {*RUN, *ELSEWHERE}


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


@pytest.mark.slow
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
        few.setattr(build, "_CHECKS", 300)
        few.setattr(node_counts, "_LINES", (0.0, 0.33, 0.5, 0.84, 1.0))
        few.chdir(tmp_path)
        _, printed = run(python_of(page))
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
    assert printed[0] == "converged log evidence -20.711\n"
    assert printed[1].startswith("log evidence -20.711 Lookups(inside=")
    assert printed[1].endswith("outside=0)\n")
    assert printed[2] == "mean 3.0481, sigma* 1.3962, EP's deviation 1.5635\n"
    assert "log_prob of forgetful raised KeyError: 'no entry'" in printed[3]
    for line, truth in zip(printed[4].splitlines(), (0.5**0.5, 0.9031972856), strict=True):
        value, error = (float(v) for v in line.split(",")[0].split(" ± "))
        assert abs(value - truth) < 4.0 * error < 0.1


def test_numbers_on_pages_are_those_of_the_kept_results():
    """``python -m scripts.reports pages`` writes them; accuracy is tested elsewhere."""
    kept = json.loads((TOP / "tables" / "results" / "bench.json").read_text())
    assert set(kept["results"]) == set(SECTIONS)
    for page, parts in pages.PAGES.items():
        text = (TOP / "docs" / page).read_text()
        cheap = {name: make for name, make in parts.items() if name != "accuracy"}
        assert pages.written(text, cheap) == text, f"python -m scripts.reports pages {page}"
    with pytest.raises(ValueError, match="0 places are marked 'fits'"):
        pages.written("no marks", {"fits": lambda: ""})


def svg_parts(text):
    """Return the markup of an SVG without numbers and generated ids, and its numbers.

    Matplotlib derives ids from coordinates, whose last bits differ between processors.
    """
    text = re.sub(r'(id="|#)[a-z]+[0-9a-f]{10}', "", text)
    number = re.compile(r"-?\d+\.\d+")
    return number.sub("", text), [float(digits) for digits in number.findall(text)]


@pytest.mark.slow
def test_every_chart_is_drawn_and_shown(tmp_path):
    """Each page has its chart; the kept one shows the same if matplotlib is the same."""
    import matplotlib

    assert {f"bench-{name}.md" for name in charts.CHARTS} == set(pages.PAGES)
    for name, draw in charts.CHARTS.items():
        draw(tmp_path / f"{name}.svg")
        drawn, kept = (tmp_path / f"{name}.svg").read_text(), charts.path_of(name).read_text()
        assert f"_static/benchmarks/{name}.svg" in (TOP / "docs" / f"bench-{name}.md").read_text()
        if f"Matplotlib v{matplotlib.__version__}" in kept:
            markup, numbers = svg_parts(kept)
            command = f"python -m scripts.reports pages bench-{name}.md"
            assert svg_parts(drawn) == (markup, pytest.approx(numbers, abs=1e-4)), command


BLOCKS = python_of(TOP / "docs" / "other-libraries.md")
#: What stands in a block that needs an extra; the block of JAX is run_blocks first, for its data.
EXTRAS = ("jax", "torch", "gpytorch", "GPy")


def needed(block):
    return {name for name in EXTRAS if re.search(rf"^(import|from) {name}\b", block, re.MULTILINE)}


def test_other_libraries_without_an_extra():
    plain = [block for block in BLOCKS if not needed(block)]
    assert len(plain) == 2
    names, printed = run(plain)
    assert names["d_mu"] == pytest.approx(-1.824031356456717, abs=1e-12)
    assert float(printed[-1].split()[-1]) == pytest.approx(2.0 * 0.825215532323, abs=1e-9)


@pytest.mark.slow
def test_other_libraries_with_all_extras():
    missing = [name for name in EXTRAS if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    import jax

    with warnings.catch_warnings(action="ignore"):  # of these libraries, on import
        try:
            _, printed = run(BLOCKS)
        finally:
            jax.config.update("jax_enable_x64", False)
    lines = "".join(printed).splitlines()
    differences = [float(line.split()[-1]) for line in lines if "difference from infer" in line]
    for difference, most in zip(differences, (1e-8, 1e-8, 1e-5), strict=True):
        assert difference < most
