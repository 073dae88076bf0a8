"""Tests mirror the packages: where a module is, there are its tests."""

from pathlib import Path

TESTS = Path(__file__).parent
TOP = TESTS.parent
#: Folders of tests that belong to no room, and of what tests share.
BESIDE = {"docs_site", "properties", "reference", "scripts", "tools"}


def room_of(path):
    """Package that the tests in a folder are of, as a path."""
    inside = path.parent.relative_to(TESTS)
    return TOP / inside if inside.parts[0] == "tablegen" else TOP / "qpruntime" / inside


def modules_of(room):
    """Words that a file of tests may begin with: modules of a room, and the room itself."""
    return [room.name, *(path.stem.lstrip("_") for path in room.glob("*.py"))]


def of_one_module(path):
    named = path.stem.removeprefix("test_")
    return any(f"{named}_".startswith(f"{module}_") for module in modules_of(room_of(path)))


def test_every_file_of_tests_names_a_module_of_its_room():
    files = [path for path in TESTS.rglob("test_*.py") if path.parent != TESTS]
    files = [path for path in files if path.relative_to(TESTS).parts[0] not in BESIDE]
    assert len(files) > 100
    stray = [str(path.relative_to(TOP)) for path in files if not of_one_module(path)]
    assert stray == [], "name the module first: test_MODULE.py or test_MODULE_ASPECT.py"
