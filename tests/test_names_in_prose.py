"""Names of modules, functions and files that docstrings, comments and pages mention are there."""

import importlib
import io
import re
import tokenize
from pathlib import Path

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


def test_a_name_that_is_gone_is_found(tmp_path):
    page = tmp_path / "page.md"
    names = "qpruntime.inference.nothing", "qpruntime/inference/nothing.py", "nothing.py"
    page.write_text("\n".join((*names, "test_nobody")))
    assert missing(page) == [f"{k}: {n}" for k, n in enumerate((*names, "test_nobody"), 1)]
    code = tmp_path / "code.py"
    code.write_text('"""As `qpruntime.infer` does."""\nx = 1  # not qpruntime.infers\n')
    assert missing(code) == ["2: qpruntime.infers"]
