"""Names of modules, functions and files that docstrings, comments and pages mention are there."""

import ast
import functools
import importlib
import io
import re
import tokenize
from pathlib import Path

import qpruntime
from tests.tools.cases import every_case

TOP = Path(__file__).parents[1]
SOURCES = sorted(p for room in ("qpruntime", "tablegen") for p in (TOP / room).rglob("*.py"))
PAGES = sorted((TOP / "docs").glob("*.md"))
PAGES += [TOP / name for name in ("CONTRIBUTING.md", "README.md", "pyproject.toml")]
#: A name with dots after the package, of a module or what it has; files of tables end otherwise.
NAME = re.compile(r"(?<![\w./@-])(?:qpruntime|tablegen)(?:\.[A-Za-z_]\w*)+(?![\w/-])")
FILE = re.compile(
    r"(?<![\w./-])(?:qpruntime|tablegen|tests|scripts)(?:/[\w-]+)+(?:\.(?:py|sh|md|csv))?(?![\w*{.])"
)
#: Modules by their file alone, and tests by their name.
MODULE = re.compile(r"(?<![\w./-])[a-z_]\w*\.py(?!\w)")
TEST = re.compile(r"(?<!\w)test_[a-z]\w*")
ROOMS = ("qpruntime", "tablegen", "tests", "scripts", "docs")
FILES = {path.name for room in ROOMS for path in (TOP / room).rglob("*.py")}
TESTS = {path.stem for path in (TOP / "tests").rglob("*")}
for _path in (TOP / "tests").rglob("test_*.py"):
    TESTS.update(re.findall(r"def (test_\w+)", _path.read_text()))


#: Sections of docstrings whose entries have types, and classes named there.
TYPED = ("Attributes", "Parameters", "Returns", "Yields")
CLASS = re.compile(r"(?<![\w.'\"{=(])[A-Z]\w*[a-z]\w*")
#: Classes of other packages, and of modules that those who name them do not import.
OTHERS = {"Axes", "Generator", "None", "OptimizeResult", "Path", "RandomState"}
OTHERS |= {"Domain", "Optimum", "Plan", *qpruntime.__all__}


def prose(path):
    """Comments and strings of a module, or the text of a page, by line."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for n, line in enumerate(token.string.splitlines()):
                yield token.start[0] + n, line


def is_there(name):
    """Whether a dotted name can be imported, or is an attribute of what can."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(parts[0]):
                return True  # of an extra that is not installed
            continue
        except (ImportError, DeprecationWarning):  # or of what an extra says of itself
            return True
        for part in parts[cut:]:
            # Attributes of instances are named with their class.
            if isinstance(found, type) and part in getattr(found, "__annotations__", {}):
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def missing(path):
    found = []
    for line, text in prose(path):
        found += [f"{line}: {name}" for name in NAME.findall(text) if not is_there(name)]
        for name in FILE.findall(text):
            # NAME stands for any name.
            if "NAME" not in name and not (TOP / name).exists():
                found += [] if (TOP / f"{name}.py").exists() else [f"{line}: {name}"]
        found += [f"{line}: {name}" for name in MODULE.findall(text) if name not in FILES]
        found += [f"{line}: {name}" for name in TEST.findall(text) if name not in TESTS]
    return found


@every_case("path", SOURCES + PAGES)
def test_what_is_mentioned_is_there(path):
    assert missing(path) == []


def types_in(docstring):
    """Types of the entries of a docstring's sections."""
    section, lines = None, docstring.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following and not following.strip("-"):
            section = line
        elif section in TYPED and line[:1].strip("- "):
            name, separator, kind = line.partition(" : ")
            if separator or section in ("Returns", "Yields"):
                yield re.sub(r"``[^`]*``", "", kind if separator else name)


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def names_of(path):
    """Classes that a module defines, imports or uses."""
    nodes = list(ast.walk(tree_of(path)))
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {name for name, _ in imports_of(path)}


def imports_of(path):
    """Names that a module imports, and the files that they are, or are imported from."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            source = TOP / node.module.replace(".", "/")
            for alias in node.names:
                inside = [source / f"{name}.py" for name in ("__init__", alias.name)]
                files = [source.with_suffix(".py"), *inside]
                yield alias.name, [file for file in files if file in SOURCES]


def unknown_types(path):
    """Classes of types in docstrings that a module, and those that it imports, do not know."""
    known = OTHERS | names_of(path)
    for _, files in imports_of(path):
        known = known.union(*map(names_of, files))
    documented = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef)
    docstrings = [
        ast.get_docstring(n) for n in ast.walk(tree_of(path)) if isinstance(n, documented)
    ]
    types = [kind for text in docstrings if text for kind in types_in(text)]
    return sorted({name for kind in types for name in CLASS.findall(kind)} - known)


@every_case("path", SOURCES)
def test_classes_in_types_are_there(path):
    assert unknown_types(path) == []


def test_a_class_that_is_gone_is_found(tmp_path):
    code = tmp_path / "code.py"
    code.write_text(
        'class Part:\n    """A part.\n\n    Attributes\n    ----------\n'
        "    whole : Whole or None\n        A Word that is no type.\n"
        '    parts : tuple of Part\n    """\n'
    )
    assert unknown_types(code) == ["Whole"]


def test_a_name_that_is_gone_is_found(tmp_path):
    page = tmp_path / "page.md"
    names = "qpruntime.inference.nothing", "qpruntime/inference/nothing.py", "nothing.py"
    page.write_text("\n".join((*names, "test_nobody")))
    assert missing(page) == [f"{k}: {n}" for k, n in enumerate((*names, "test_nobody"), 1)]
    code = tmp_path / "code.py"
    code.write_text('"""As `qpruntime.infer` does."""\nx = 1  # not qpruntime.infers\n')
    assert missing(code) == ["2: qpruntime.infers"]
