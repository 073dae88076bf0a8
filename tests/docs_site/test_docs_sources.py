"""What the site is made of, without building it: pages, the API's lists, inventories, scripts."""

import importlib
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import qpruntime
from tests.tools.cases import every_case
from tests.tools.docs_built import DOCS

PAGES = sorted([*DOCS.glob("*.md"), *(DOCS / "api").glob("*.rst")])
TEXTS = {str(page.relative_to(DOCS)): page.read_text() for page in PAGES}
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```|\.\. toctree::\n(.*?)(?:\n\S|\Z)", re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s:]+)\)")
ROOMS = ("bayesopt", "criticism", "effects", "forecasting", "kernels", "likelihoods", "plotting")
#: Packages with public names, and what some of them need.
PACKAGES = {
    **{"qpruntime": "", "tablegen": "", **{f"qpruntime.{room}": "" for room in ROOMS}},
    "qpruntime.deep": "jax",
    "qpruntime.onnx": "onnx",
    "qpruntime.bayesopt.optuna_sampler": "optuna",
    "qpruntime.forecasting.sktime": "sktime",
}


def listed():
    """What the autosummaries of API pages list: the module and the name in it."""
    found = set()
    for name, text in TEXTS.items():
        module = ""
        for line in text.splitlines() if name.startswith("api/") else ():
            if match := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif module and (match := re.fullmatch(r" {3}([A-Za-z_][\w.]*)", line)):
                inside, _, last = match[1].rpartition(".")
                found.add((f"{module}.{inside}".rstrip("."), last))
    return found


def known(module):
    """Whether what a module needs is installed."""
    return not (needs := PACKAGES.get(module)) or bool(find_spec(needs))


def slugs(text):
    """Addresses of the headings of a Markdown page."""
    bare = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", bare, re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).lower()
        yield words.strip().replace(" ", "-")


def test_every_page_is_reached_from_the_first():
    seen, todo = set(), ["index.md"]
    while todo:
        name = todo.pop()
        seen.add(name)
        folder = Path(name).parent
        trees = "\n".join(map("".join, TOCTREE.findall(TEXTS[name])))
        for entry in re.findall(r"^\s*([\w/-]+)$", trees, re.MULTILINE):
            if entry.startswith("auto_gallery/"):
                continue
            page = str(folder / entry)
            ends = [page + end for end in (".md", ".rst") if page + end in TEXTS]
            assert ends, f"{name} names {entry}"
            todo += [one for one in ends if one not in seen]
    assert set(TEXTS) - seen == set()


@every_case("package", PACKAGES)
def test_every_public_object_is_on_a_page_of_the_api(package):
    if not known(package):
        return  # The names are those of an extra that is not here.
    module = importlib.import_module(package)
    names = {(package, name) for name in module.__all__}
    elsewhere = {getattr(importlib.import_module(m), name) for m, name in listed() if known(m)}
    assert {name for m, name in names - listed() if getattr(module, name) not in elsewhere} == set()


def test_what_the_api_lists_is_there():
    for module, name in listed():
        if known(module):
            assert getattr(importlib.import_module(module), name).__doc__, name
    assert len(listed()) > 50


def test_links_to_headings_lead_to_one():
    wrong = []
    for name, text in TEXTS.items():
        for target in LINK.findall(text) if name.endswith(".md") else ():
            page, _, anchor = target.partition("#")
            own = TEXTS.get(page) if page else text
            if anchor and own is not None and anchor not in slugs(own):
                wrong.append((name, target))
    assert wrong == []


def test_the_configuration_is_read(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    conf = runpy.run_path(str(DOCS / "conf.py"))
    assert conf["version"] == qpruntime.__version__
    assert conf["nitpicky"]
    for name, (address, inventory) in conf["intersphinx_mapping"].items():
        assert address.startswith("https://")
        assert (DOCS / inventory).is_file(), name
    own = {path.stem for path in (DOCS / "site").glob("*.py")} - {"figure_style"}
    assert own <= set(conf["extensions"])


@every_case("path", sorted((DOCS / "inventories").glob("*.inv")))
def test_names_of_inventories_are_there(path):
    """Names of other projects, with the page of each; that these are published is not tested."""
    first, project, version, *rows = path.read_text().splitlines()
    assert first == "# Sphinx inventory version 1"
    assert project.startswith("# Project: ")
    assert version.startswith("# Version: ")
    for row in rows:
        name, kind, page = row.split()
        assert page.endswith(".html")
        assert kind in {"class", "data", "exception", "function"}
        module, _, last = name.rpartition(".")
        there = hasattr(importlib.import_module(module or "builtins"), last)
        assert there or name in ("None", "True", "False"), name


def test_nothing_of_a_page_is_fetched():
    """No address of a script, style, font or picture on our side of the site."""
    static = DOCS / "_static"
    for path in [*static.rglob("*.css"), *static.glob("**/render.js"), DOCS / "conf.py"]:
        assert not re.search(r"(?:url\(|src=|import |href=)[\"']?https?:", path.read_text()), path
    fonts = re.findall(r"url\(([^)]+)\)", (static / "katex" / "katex.min.css").read_text())
    assert fonts
    assert all((static / "katex" / font).is_file() for font in fonts)
    assert sum(path.stat().st_size for path in static.rglob("*") if path.is_file()) < 2_000_000
    for name, text in TEXTS.items():
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:img|script|iframe)", text), name


def test_formulas_are_balanced():
    for name, text in TEXTS.items():
        if not name.endswith(".md"):
            continue
        bare = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        for formula in re.findall(r"\$\$(.+?)\$\$", bare, re.DOTALL):
            assert formula.count("{") == formula.count("}"), (name, formula)
            sides = (len(re.findall(rf"\\{side}(?!arrow)", formula)) for side in ("left", "right"))
            assert len(set(sides)) == 1, (name, formula)
        assert bare.count("$$") % 2 == 0, name


@pytest.mark.skipif(not find_spec("docutils"), reason="docutils is not installed: the extra docs")
def test_the_help_of_commands_is_theirs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [str(DOCS / "site"), *sys.path])
    directive = importlib.import_module("help_of_commands")
    help_of = directive.help_of
    from tablegen.console.cli import main

    monkeypatch.setenv("COLUMNS", directive.WIDTH)
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    assert help_of(["tablegen", "build"]) == capsys.readouterr().out
    shown = re.findall(r"\.\. help-of:: tablegen (\w+)", TEXTS["api/tablegen.rst"])
    choices = re.findall(r"^    ([a-z]+) ", help_of(["tablegen"]), re.MULTILINE)
    assert sorted(shown) == sorted(choices)


def test_examples_draw_in_the_block_that_makes_the_figure():
    """Figures are taken at the end of a block: what is drawn in them later is on no page."""
    wrong = []
    for path in sorted((DOCS / "gallery").glob("plot_*.py")):
        made = set()
        for block in re.split(r"^# %%$", path.read_text(), flags=re.MULTILINE):
            code = re.sub(r"#.*", "", block)
            own = re.findall(r"^(\w+), (\w+) = plt\.subplots\(", code, re.MULTILINE)
            here = {name for pair in own for name in pair}
            late = {name for name in made - here if re.search(rf"\b{name}\b[.\[]", code)}
            wrong += [(path.name, name) for name in sorted(late)]
            made |= here
    assert wrong == []
