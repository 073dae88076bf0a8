"""Tables as they are declared, and what workers of a cluster are sent."""

import json

import numpy as np
import pytest

from scripts import cluster, records
from scripts.reports import tables
from scripts.studies import held_out
from tests.tools.commands import python

LINES = [
    '{"set": "b", "seed": 0, "loss": 1.0}',
    '{"set": "a", "seed": 0, "loss": 2.0}',
    '{"set": "b", "seed": 1, "loss": 3.0}',
    '{"set": "c", "seed": 0, "loss": 9.0}',
]
HEAD = "| set | mean | last | last |\n|---|---|---|---|\n"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A file of records in place of the project's."""
    (tmp_path / "kept.jsonl").write_text("\n".join(LINES))
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    columns = [
        ("set", "{set}"),
        ("mean", lambda some: f"{np.mean([r['loss'] for r in some]):.1f}"),
        ("last", "{loss:.0f}"),
        ("last", "{seed}"),
    ]
    return tables.Table("kept.jsonl", columns, group=("set",), where=lambda r: r["set"] != "c")


def test_groups_are_lines_in_the_order_of_the_file_or_sorted(kept):
    assert kept() == HEAD + "| b | 2.0 | 3 | 1 |\n| a | 2.0 | 2 | 0 |"
    found = kept._replace(order=lambda key: key)()
    assert found == HEAD + "| a | 2.0 | 2 | 0 |\n| b | 2.0 | 3 | 1 |"
    # Without fields every record is a line.
    assert kept._replace(group=(), where=None)().count("\n") == 1 + len(LINES)
    assert kept([]) == HEAD.rstrip("\n")


def test_cells_are_of_a_part_of_a_group():
    """Of set b the losses 1 and 3: mean 2, error 1; of seed 1 there is one, and none in set a."""
    rows = [json.loads(line) for line in LINES[:3]]
    columns = {
        "set": "{set}",
        "count": tables.count,
        "mean": tables.average("loss", ".2f"),
        "most": tables.average("loss", ".0f", max),
        "spread": tables.spread("loss", ".1f"),
        **tables.across("seed", (0, 1), "{loss:.1f}"),
        "first": tables.of("seed", 1, tables.size("loss"), "none"),
    }
    assert tables.Table(lambda: rows, columns, group=("set",), right=1)() == (
        "| set | count | mean | most | spread | 0 | 1 | first |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n"
        "| b | 2 | 2.00 | 3 | 2.0 ± 1.0 | 1.0 | 3.0 | 3 |\n"
        "| a | 1 | 2.00 | 2 | 2.0 | 2.0 |  | none |"
    )


def test_cells_of_two_ways():
    """Losses 1 and 3 before, 2 and 8 after: the gains are 1 and 5, their mean 3, its error 2."""
    before, after = ({"loss": 1.0}, {"loss": 3.0}), ({"loss": 2.0}, {"loss": 8.0})
    rows = [{"hit": 0.5, "of": {"a": a, "b": b}} for a, b in zip(before, after, strict=True)]
    columns = {
        "a": tables.within("a", tables.spread("loss", ".1f")),
        "gain": tables.gain("loss", "a", "b", "+.1f"),
        "in tenths": tables.gain("loss", "a", "b", ".0f", 10.0),
        "share": tables.percent("hit"),
        "both": tables.beside("hit", "hit"),
    }
    found = tables.Table("", columns, ("hit",))(rows).splitlines()
    assert found[1] == "|---|---|---|---|---|"
    assert found[2] == "| 2.0 ± 1.0 | +3.0 ± 2.0 | 30 ± 20 | 50 | 0.500 (0.500) |"


def test_models_are_judged_once_a_fold_and_a_first_time_to_compile(tmp_path):
    kept, calls = records.Records(tmp_path / "kept.jsonl", "set model fold"), []

    def judge(part):
        calls.append(part)
        return {"density": float(part)}

    for _ in range(2):
        held_out.fill(kept, "a", [0, 1], {"one": judge, "two": judge}, {"rows": 9})
    # The first call of each model compiles.
    assert calls == [0, 0, 0, 0, 1, 1]
    found = kept.records["a", "two", 1]
    assert (found["rows"], found["density"], "cpu" in found) == (9, 1.0, True)


def test_the_last_of_records_that_agree_counts():
    rows = [{"set": "a", "seed": 0, "loss": loss} for loss in (1.0, 5.0)]
    rows.append({"set": "a", "seed": 1, "loss": 3.0})
    shown = tables.Table(
        "", {"mean": tables.average("loss", ".1f"), "of": tables.count}, ("set",), last=("seed",)
    )
    assert shown(rows).endswith("| 4.0 | 2 |")
    assert shown._replace(last=())(rows).endswith("| 3.0 | 3 |")


def test_marks_of_columns_and_numbers_for_people():
    assert tables.table(["a", "b"], [["1", "2"]], right=1) == "| a | b |\n|---|---:|\n| 1 | 2 |"
    assert tables.table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
    assert tables.number(None) == "–"
    assert tables.number(0.012345, "s") == "0.0123 s"
    assert tables.number(12345.6, "x") == tables.spaced(12345.6) == "12 346"
    # The error of the mean of 1 and 2 is 1/2.
    assert tables.mean_error([1.0, 2.0], "+.1f") == "+1.5 ± 0.5"
    assert tables.mean_error([1.0]) == "1.000"
    assert tables.mean_error([]) == "–"


def test_workers_import_what_they_are_sent(tmp_path):
    """From the archive alone: the checkout is elsewhere."""
    path = cluster._archive(tmp_path)
    code = (
        "import scripts.benchmarks.data.protocol as p; print(p.__file__, p.Task('a', 'main', 0, 1))"
    )
    done = python("-c", code, cwd=tmp_path, environment={"PYTHONPATH": str(path)})
    assert done.stdout.startswith(str(path))
