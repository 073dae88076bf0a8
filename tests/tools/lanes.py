"""Several runs of pytest that share one suite: each takes the files that no other has taken.

``python -m pytest -p tests.tools.lanes --claims=FOLDER`` begins with the rooms that all others
stand on, and so compiles what all others use; with ``--downwards`` a run begins at the other end.
They meet where their speeds make them meet. FOLDER, empty at first, keeps what is taken.
"""

from pathlib import Path


def pytest_addoption(parser):
    group = parser.getgroup("lanes")
    group.addoption("--claims", type=Path, help="folder of what runs have taken, for all of them")
    group.addoption("--downwards", action="store_true", help="begin with the uppermost rooms")


def parcel(path, top):
    """What is taken at once, by its path from the top: a file, or its folder.

    Files whose folder has a ``conftest.py`` share what that makes once.
    """
    inside = path.relative_to(top)
    together = len(inside.parts) > 2 and (path.parent / "conftest.py").exists()
    return inside.parent if together else inside


def floor(path):
    """Floor of the room that a parcel belongs to; above all rooms if it is of none."""
    # Not before tests are collected: pytest rewrites the assertions of what it imports itself.
    from tests.test_imports import FLOOR, FLOORS

    parts = path.with_suffix("").parts
    if parts[0] == "tests":
        parts = parts[1:] if parts[1] == "tablegen" else ("qpruntime", *parts[1:])
    return FLOOR.get(".".join(parts[:2]), len(FLOORS))


def taken(claims, name):
    """Take a parcel, unless it is taken: the system makes a file once only."""
    try:
        (claims / str(name).replace("/", "+")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def share(session):
    """Tests of this run, whose parcels are taken one after another, as late as can be."""
    parcels = {}
    for item in session.items:
        parcels.setdefault(parcel(item.path, session.config.rootpath), []).append(item)
    order = sorted(parcels, key=lambda name: (floor(name), name))
    if session.config.option.downwards:
        order.reverse()
    for name in order:
        if taken(session.config.option.claims, name):
            yield from parcels[name]


def pytest_runtestloop(session):
    """Run them as pytest does: what a test leaves standing depends on the one that comes next."""
    options = session.config.option
    if session.testsfailed or options.collectonly or options.claims is None:
        return None
    items = share(session)
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True
