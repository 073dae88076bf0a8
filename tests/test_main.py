"""What ``python -m qpruntime`` prints."""

import json
import shutil

import numpy as np
import scipy

from qpruntime import __main__ as command, __version__
from qpruntime.projection.open import shipped_path


def test_what_a_report_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "3\x1b[2J")
    shutil.copy(shipped_path("probit"), tmp_path)
    (tmp_path / "broken.h5").write_bytes(b"no table")
    assert command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = dict(line.split(maxsplit=1) for line in lines if not line.startswith("table "))
    assert found["qpruntime"] == __version__
    assert (found["numpy"], found["scipy"]) == (np.__version__, scipy.__version__)
    assert found["OMP_NUM_THREADS"] == "3\\x1b[2J"
    assert int(found["cores"]) >= 1
    assert any("blas" in line and line.endswith("threads") for line in lines)
    tables = [line.split(maxsplit=1)[1] for line in lines if line.startswith("table ")]
    assert "not an HDF5 file" in tables[0]
    assert tables[1].startswith("probit-compact.h5: compact of probit, ")
    assert command.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables in"] == str(tmp_path)
    monkeypatch.setenv("QP_TABLES", str(tmp_path / "none"))
    assert command.main([]) == 0
    assert "none installed" in capsys.readouterr().out
