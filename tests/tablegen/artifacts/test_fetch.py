"""Tables published and fetched: from directories, unruly servers and file systems."""

import fcntl
import hashlib
import json
import os
import pickle
import re
import shlex
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

import tablegen
from qpruntime import GPClassifier, InputError, TableError, open_table
from qpruntime.projection import open
from qpruntime.projection.open import shipped_path
from tablegen.artifacts import fetch as fetching, registry
from tablegen.artifacts.fetch import TransferLimits
from tablegen.console.cli import main
from tests.tools.cases import every_case, refuses
from tests.tools.unruly_server import serving

SHIPPED = shipped_path("probit")
BYTES = SHIPPED.read_bytes()
HASH = hashlib.sha256(BYTES).hexdigest()
IMPATIENT = TransferLimits(silence=2.0, window=0.3, least=1e5, tries=3)


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """An empty directory of installed tables, and no registry."""
    monkeypatch.setenv("QP_TABLES", str(tmp_path / "tables"))
    monkeypatch.delenv("QP_REGISTRY", raising=False)
    return tmp_path / "tables"


@pytest.fixture
def shelf(tmp_path):
    """A directory with two published tables."""
    tablegen.publish(tmp_path / "shelf", ["probit", "heaviside"])
    return tmp_path / "shelf"


def left(installed):
    return sorted(path.name for path in installed.glob("*"))


def test_what_is_published(shelf, installed):
    entries = registry.read((shelf / "registry.json").read_bytes(), "it")
    assert [entry.name for entry in entries] == ["heaviside-compact", "probit-compact"]
    probit = entries[1]
    assert (probit.size, probit.sha256) == (len(BYTES), HASH)
    assert probit.data_sha256 == open_table("probit").sha256
    assert probit.command == "tablegen build --likelihood probit --preset compact --tolerance 1e-09"
    assert "relative error of sigma* below 1e-09" in probit.guarantee
    # Again, with what is there and one more.
    before = (shelf / "probit-compact.h5").stat().st_mtime_ns
    tablegen.publish(shelf, ["poisson"])
    assert len(registry.read((shelf / "registry.json").read_bytes(), "it")) == 3
    assert (shelf / "probit-compact.h5").stat().st_mtime_ns == before
    expected = [f"{name}-compact" for name in ("heaviside", "poisson", "probit")]
    assert [entry.name for entry in tablegen.publish(shelf.parent / "all")[1]] == expected


def test_fetched_from_a_directory(shelf, installed, capsys):
    path, metadata = tablegen.fetch("probit-compact", source=shelf)
    assert path == installed / "probit-compact.h5"
    assert path.read_bytes() == BYTES
    assert metadata.likelihood == "probit"
    assert left(installed) == ["probit-compact.h5"]
    # It is there: nothing is fetched again, by name and hash, or from the command line.
    (shelf / "probit-compact.h5").unlink()
    assert tablegen.fetch("probit-compact", source=shelf)[0] == path
    assert main(["fetch", "probit-compact", "--from", str(shelf), "--sha256", HASH, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(path)


def test_half_a_character_is_no_path():
    with pytest.raises(InputError, match=r"half a character; give a directory"):
        tablegen.fetch("probit-compact", source="\ud800")


@every_case("how", ["file hash", "data hash", "by data hash", "variable", "path", "registry file"])
def test_ways_to_ask(how, shelf, tmp_path, monkeypatch):
    data = open_table("probit").sha256
    out = {"output": tmp_path / f"{how}.h5"}
    found = {
        "file hash": lambda: tablegen.fetch("probit-compact", source=shelf, sha256=HASH, **out),
        "data hash": lambda: tablegen.fetch("probit-compact", source=shelf, sha256=data, **out),
        "by data hash": lambda: tablegen.fetch(data, source=shelf, **out),
        "variable": lambda: (
            monkeypatch.setenv("QP_REGISTRY", str(shelf)),
            tablegen.fetch("probit-compact", **out),
        )[1],
        "path": lambda: tablegen.fetch(f"{shelf}/probit-compact.h5", sha256=data, **out),
        "registry file": lambda: tablegen.fetch(
            "probit-compact", source=(shelf / "registry.json").as_uri(), **out
        ),
    }[how]()
    assert found[0].read_bytes() == BYTES


def on_a_server(shelf, **more):
    return serving({f"/t/{path.name}": path.read_bytes() for path in shelf.iterdir()} | more)


@every_case(
    "manners",
    [
        *([], ["plain", "cut"], ["cut", "cut", "cut", "cut"], ["plain", "503", "cut"]),
        *(["plain", "cut", "no ranges"], ["plain", "no length"]),
    ],
)
def test_cut_connections_are_resumed(manners, shelf, tmp_path):
    with on_a_server(shelf) as server:
        server.manners = list(manners)
        output = tmp_path / f"{len(manners)}.h5"
        path, _ = tablegen.fetch("probit-compact", source=f"{server.url}/t", output=output)
        assert path.read_bytes() == BYTES
        spans = [span for _, span in server.asked if span]
        assert len(spans) >= manners.count("cut") - manners.count("no ranges") - 1
        path.unlink()


def test_a_later_call_goes_on(shelf, installed):
    with on_a_server(shelf) as server:
        server.manners = ["plain", "cut", "503", "503"]
        with pytest.raises(TableError, match="are kept: the same command goes on from there"):
            tablegen.fetch("probit-compact", source=f"{server.url}/t", limits=IMPATIENT)
        assert [name.endswith(".part") for name in left(installed)] == [True]
        server.asked.clear()
        path, _ = tablegen.fetch("probit-compact", source=f"{server.url}/t")
        assert [span for _, span in server.asked if span] == [f"bytes={len(BYTES) // 2}-"]
    assert path.read_bytes() == BYTES
    assert left(installed) == ["probit-compact.h5"]


def partial_of(url, installed):
    """Place of the bytes of a table that is fetched by its URL and its file's hash."""
    return installed / f"{url.rpartition('/')[2]}.{HASH[:16]}.part"


def test_a_range_that_is_refused_is_asked_for_once_more_from_the_start(shelf, installed):
    installed.mkdir()
    with on_a_server(shelf) as server:
        url = f"{server.url}/t/probit-compact.h5"
        partial_of(url, installed).write_bytes(BYTES[:100])
        server.manners = ["416"] * 50
        with pytest.raises(TableError, match="answers 416 to a request for the whole file"):
            tablegen.fetch(url, sha256=HASH)
        assert [span for _, span in server.asked] == ["bytes=100-", None]
        server.manners = ["416"]
        assert tablegen.fetch(url, sha256=HASH)[0].read_bytes() == BYTES


def test_a_size_beyond_what_is_expected_is_refused_before_a_byte_is_kept(
    shelf, installed, monkeypatch
):
    with on_a_server(shelf) as server:
        url = f"{server.url}/t/probit-compact.h5"
        server.manners = ["enormous"]
        message = f"has {10**15} bytes, more than the {1 << 34} allowed"
        refuses(message, tablegen.fetch, url, error=TableError)
        server.manners = ["plain", "enormous"]
        words = f"says it has {10**15} bytes, {len(BYTES)} were announced"
        refuses(words, tablegen.fetch, "probit-compact", error=TableError, source=f"{server.url}/t")
        monkeypatch.setattr(
            fetching.shutil, "disk_usage", lambda _: SimpleNamespace(free=len(BYTES) - 1)
        )
        with pytest.raises(
            TableError, match=f"{len(BYTES)} bytes, and .* has {len(BYTES) - 1} free"
        ):
            tablegen.fetch(url)
        assert left(installed) == []
        monkeypatch.setattr(
            fetching.shutil, "disk_usage", lambda _: SimpleNamespace(free=len(BYTES))
        )
        assert tablegen.fetch(url)[0].read_bytes() == BYTES


@every_case("scheme", ["file", "local"])
def test_a_source_that_is_a_pipe_is_not_waited_for(scheme, tmp_path):
    os.mkfifo(tmp_path / f"{scheme}.h5")
    with pytest.raises(TableError, match="cannot be read: it is no regular file"):
        tablegen.fetch(f"{scheme}://{tmp_path}/{scheme}.h5")


def test_a_pipe_at_the_place_is_not_opened(shelf, tmp_path):
    os.mkfifo(tmp_path / "place.h5")
    with pytest.raises(TableError, match="is a FIFO, not a regular file"):
        tablegen.fetch("probit-compact", source=shelf, output=tmp_path / "place.h5")


@every_case("what", ["link", "link to all of it", "link to nothing", "pipe"])
def test_a_link_or_pipe_where_the_bytes_are_kept_is_refused(what, shelf, installed, tmp_path):
    installed.mkdir(exist_ok=True)
    partial, other = partial_of(f"file://{shelf}/probit-compact.h5", installed), tmp_path / what
    if what == "pipe":
        os.mkfifo(partial)
    else:
        partial.symlink_to(other)
    if what in ("link", "link to all of it"):
        other.write_bytes(BYTES if what == "link to all of it" else b"precious")
    before = other.read_bytes() if other.exists() else None
    with pytest.raises(TableError, match="a link or a special file"):
        tablegen.fetch("probit-compact", source=shelf)
    assert (other.read_bytes() if other.exists() else None) == before
    assert left(installed) == [partial.name]
    partial.unlink()


def test_one_process_at_a_time_and_what_a_killed_one_has_left(shelf, installed):
    installed.mkdir()
    with on_a_server(shelf) as server:
        url = f"{server.url}/t/probit-compact.h5"
        mark = hashlib.sha256(url.encode()).hexdigest()[:16]
        # Checked and not yet in place when the process was killed; the URL has another table now.
        (installed / f"probit-compact.h5.{mark}.whole").write_bytes(b"of before")
        with (installed / f".probit-compact.h5.{mark}.part.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            refuses("another process is fetching", tablegen.fetch, url, error=TableError)
        assert tablegen.fetch(url)[0].read_bytes() == BYTES
    assert left(installed) == ["probit-compact.h5"]


def test_a_redirect_is_followed(shelf):
    with serving({"/there.h5": BYTES}) as other, serving({"/here.h5": ""}) as server:
        server.files["/here.h5"] = f"{other.url}/there.h5"
        path, _ = tablegen.fetch(f"{server.url}/here.h5", sha256=HASH)
        assert (path.name, path.read_bytes()) == ("here.h5", BYTES)
        server.files["/here.h5"] = f"{server.url}/here.h5"  # in a circle
        with pytest.raises(TableError, match="cannot be asked for: Exceeded 30 redirects"):
            tablegen.fetch(f"{server.url}/here.h5", force=True)


def damaged():
    middle = len(BYTES) // 2
    return BYTES[:middle] + bytes([BYTES[middle] ^ 1]) + BYTES[middle + 1 :]


REFUSED = {
    "wrong bytes": (damaged(), [], HASH, "data hash is"),
    "truncated": (BYTES[:-100], [], None, "no table that can be used"),
    "no table": (b"<html>not found</html>", [], None, "not an HDF5 file"),
    "another table": (shipped_path("heaviside").read_bytes(), [], HASH, f"not {HASH}: not kept"),
    "says more": (
        BYTES,
        ["too large"] * 10,
        None,
        "the connection (ended|was cut).* after 3 connections",
    ),
    "trickle": (BYTES, ["trickle"] * 3, None, "fewer than 100.0 KB came in 0.3 s"),
    "absent": (None, [], None, "the server answers 404"),
    "busy": (BYTES, ["503"] * 3, None, "the server answers 503, after 3 connections"),
    "endless": (BYTES, ["no length"], None, r"sends more than \d+ bytes; nothing was kept"),
}


@every_case("what", list(REFUSED))
def test_what_is_not_the_table_is_not_kept(what, tmp_path, monkeypatch):
    there = tmp_path / what
    monkeypatch.setenv("QP_TABLES", str(there))
    data, manners, digest, words = REFUSED[what]
    with serving({"/x.h5": data} if data is not None else {}) as server:
        server.manners, server.endless = list(manners), what == "endless"
        limits = replace(IMPATIENT, largest=(2 if what == "says more" else 1) * len(BYTES) + 10)
        with pytest.raises(TableError, match=words):
            tablegen.fetch(f"{server.url}/x.h5", sha256=digest, limits=limits)
    # Nothing has the table's name; of a cut connection the bytes are kept, under another.
    assert not (there / "x.h5").exists()
    kept = left(there)
    assert len(kept) == (what in ("says more", "trickle")), kept


@every_case("what", ["size", "sha256", "smaller size"])
def test_registries_that_lie(what, shelf):
    entries = registry.read((shelf / "registry.json").read_bytes(), "it")
    lie = {
        "size": {"size": len(BYTES) + 1},
        "smaller size": {"size": len(BYTES) - 1},
        "sha256": {"sha256": "0" * 64},
    }[what]
    document = registry.written([replace(entries[1], **lie)])
    with on_a_server(shelf, **{"/t/registry.json": document}) as server:
        words = "were announced; nothing was kept" if "size" in what else "its registry says 000"
        with pytest.raises(TableError, match=words):
            tablegen.fetch("probit-compact", source=f"{server.url}/t", limits=IMPATIENT)
        server.manners = ["plain", "no length"]
        words = "sends more than" if what == "smaller size" else "were announced|registry says"
        with pytest.raises(TableError, match=words):
            tablegen.fetch("probit-compact", source=f"{server.url}/t", limits=IMPATIENT)


HOSTILE = {
    "no JSON": (b"{", "no registry of tables"),
    "a list": (b"[]", "a JSON list"),
    "another format": (b'{"format": 9, "tables": []}', "format 9, this version reads 1"),
    "no tables": (b'{"format": 1}', "no list of tables"),
    "climbing": ({"file": "../../x.h5"}, "the file name"),
    "hidden": ({"file": ".x.h5"}, "the file name"),
    "no hash": ({"sha256": "abc"}, "the hash"),
    "negative": ({"size": -1}, "size -1"),
    "text for a size": ({"size": "7"}, "size '7'"),
    "more keys": ({"run": "rm"}, "whose keys are not"),
    "a terminal's": ({"name": "a\x1b[2J"}, "unprintable"),
}


@every_case("what", list(HOSTILE))
def test_hostile_registries(what, shelf):
    change, words = HOSTILE[what]
    if isinstance(change, dict):
        table = asdict(registry.read((shelf / "registry.json").read_bytes(), "it")[1]) | change
        change = json.dumps({"format": 1, "tables": [table]}).encode()
    with pytest.raises(TableError, match=words) as caught:
        registry.read(change, "it")
    assert str(caught.value).isprintable()


def test_what_is_missing_is_named(shelf, installed, capsys, tmp_path):
    with pytest.raises(InputError, match="Give its directory or URL: --from, or set QP_REGISTRY"):
        tablegen.fetch("probit-compact")
    with pytest.raises(TableError, match=r"no table 'probti-compact'.*probit-compact"):
        tablegen.fetch("probti-compact", source=shelf)
    refuses("64 hexadecimal digits", tablegen.fetch, "probit-compact", source=shelf, sha256="abc")
    with pytest.raises(TableError, match="cannot be read: No such file"):
        tablegen.fetch("probit-compact", source=tmp_path / "nowhere")
    refuses("does not end in the name of a table", tablegen.fetch, "http://127.0.0.1:1/")
    installed.mkdir()
    (installed / "probit-compact.h5").write_bytes(shipped_path("heaviside").read_bytes())
    with pytest.raises(TableError, match="replace it with --force"):
        tablegen.fetch("probit-compact", source=shelf)
    assert main(["fetch", "probit-compact", "--from", str(shelf)]) == 1
    assert "tablegen: error:" in capsys.readouterr().err
    assert main(["fetch", "probit-compact", "--from", str(shelf), "--force"]) == 0
    assert (installed / "probit-compact.h5").read_bytes() == BYTES


def test_what_cannot_be_published(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    refuses("is no directory", tablegen.publish, tmp_path / "file", ["probit"])
    with pytest.raises(TableError, match="no table"):
        tablegen.publish(tmp_path / "there", [tmp_path / "none.h5"])
    assert not (tmp_path / "there").exists()
    (tmp_path / "probit-compact.h5").write_bytes(BYTES)
    with pytest.raises(InputError, match="have one name"):
        tablegen.publish(tmp_path / "there", ["probit", tmp_path / "probit-compact.h5"])
    assert main(["publish", str(tmp_path / "shelf"), "probit"]) == 0
    assert re.search(r"probit-compact +\S+ KB +" + HASH[:16], capsys.readouterr().out)


def test_by_a_file_system_of_fsspec(shelf):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for path in shelf.iterdir():
        memory.pipe(f"/shelf/{path.name}", path.read_bytes())
    path, _ = tablegen.fetch("heaviside-compact", source="memory://shelf")
    assert path.read_bytes() == (shelf / "heaviside-compact.h5").read_bytes()
    with pytest.raises(TableError, match="Protocol not known"):
        tablegen.fetch("probit-compact", source="nosuch://shelf")


def test_a_model_without_its_table_names_the_fetch_that_works(tmp_path, monkeypatch, installed):
    table = tmp_path / "own.h5"
    table.write_bytes(BYTES)
    X = np.linspace(-2.0, 2.0, 20)[:, None]
    model = GPClassifier(table=table, method="qp").fit(X, X[:, 0] > 0.0)
    shelf = tmp_path / "shelf"
    tablegen.publish(shelf, [table])
    table.unlink()
    monkeypatch.setattr(open, "shipped_path", lambda name: tmp_path / "none")
    with pytest.raises(TableError, match="fetch it if") as caught:
        pickle.loads(pickle.dumps(model)).fit(X, X[:, 0] > 0.0)
    words = shlex.split(re.search(r"tablegen (fetch [0-9a-f]{64})", str(caught.value))[1])
    monkeypatch.setenv("QP_REGISTRY", str(shelf))
    assert main([*words, "--output", str(table)]) == 0
    assert pickle.loads(pickle.dumps(model)).fit(X, X[:, 0] > 0.0).table_sha256_
