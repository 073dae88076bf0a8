"""Archives of kernels: used on the same machine, refused when damaged, ignored elsewhere."""

import json
import zipfile

import pytest
from scipy import special

from qpruntime import kernel_archive
from tests.tools.cases import refuses
from tests.tools.commands import python

COMPILED = """
from qpruntime import _numba, kernel_archive
from qpruntime._special import log_ndtr
{before}
value = log_ndtr(-30.0)
{after}
print(repr(value), _numba.compilations())
"""


def run(cache, before="", after=""):
    code = COMPILED.format(before=before, after=after)
    done = python("-c", code, environment={"NUMBA_CACHE_DIR": str(cache)}, timeout=200)
    value, count = done.stdout.split()[-2:]
    assert float(value) == pytest.approx(special.log_ndtr(-30.0), rel=1e-14)
    return int(count)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    path = folder / "kernels.zip"
    assert run(folder / "first", after=f"assert kernel_archive.save({str(path)!r}) >= 1") >= 1
    return path


def changed(archive, tmp_path, change):
    """Return a copy of the archive whose members, by name, `change` has edited."""
    with zipfile.ZipFile(archive) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return tmp_path / "changed.zip"


def edited_manifest(edit):
    def change(members):
        manifest = json.loads(members["manifest.json"])
        edit(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def test_kernels_of_an_archive_are_not_compiled_again(archive, tmp_path):
    assert run(tmp_path, before=f"assert kernel_archive.load({str(archive)!r}) >= 1") == 0
    # What is there is left as it is.
    assert run(tmp_path, before=f"assert kernel_archive.load({str(archive)!r}) == 0") == 0


@pytest.mark.parametrize("what", ["python", "numba", "llvmlite", "cpu", "features"])
def test_an_archive_of_another_machine_is_ignored_with_one_line(archive, tmp_path, caplog, what):
    change = edited_manifest(lambda manifest: manifest["machine"].update({what: "another"}))
    other = changed(archive, tmp_path, change)
    assert kernel_archive.load(other) == 0
    (record,) = caplog.records
    assert "is ignored" in record.getMessage()
    assert f"{what} another" in record.getMessage()


def test_kernels_of_other_sources_are_left_out(archive, tmp_path):
    def edit(manifest):
        manifest["sources"] = dict.fromkeys(manifest["sources"], "0" * 32)

    assert kernel_archive.load(changed(archive, tmp_path, edited_manifest(edit))) == 0


def test_a_damaged_archive_is_refused(archive, tmp_path):
    def flip(members):
        name = next(name for name in members if name.endswith(".nbc"))
        members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])

    def outside(manifest):
        manifest["files"]["../evil.nbi"] = ""

    for change in (flip, edited_manifest(outside), lambda members: members.pop("manifest.json")):
        refuses("no archive of kernels", kernel_archive.load, changed(archive, tmp_path, change))
    (tmp_path / "text.zip").write_text("text")
    for path in (tmp_path / "text.zip", tmp_path / "none.zip"):
        refuses("warmup --save FILE", kernel_archive.load, path)
