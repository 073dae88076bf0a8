"""Axes and metadata: round trip, and every way in which a document can be wrong."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from qpruntime import TableError
from qpruntime.table_format.metadata import SCHEMA, Axis, Metadata
from tests.tools.cases import every_case, refuses

METADATA = Metadata(
    likelihood="probit",
    outcomes=[1.0],
    axes=(
        Axis.from_step("mu", -10.0, 10.0, 1e-3),
        Axis.from_step("log10_sigma", -1.0, 1.0, 1e-3, "log10"),
    ),
    dtype="float64",
    method="direct",
    generator="test",
    sha256="0" * 64,
    parameters={"a": 1.5},
    certificate={"error": 1e-13, "where": [0.0, 1.0]},
)
GONE = object()


def changed(**fields):
    """The JSON of METADATA with some fields replaced, or removed if GONE."""
    document = json.loads(METADATA.to_json()) | fields
    return json.dumps({k: v for k, v in document.items() if v is not GONE})


def test_round_trip_of_finite_numbers():
    text = METADATA.to_json()
    again = Metadata.from_json(text, "file")
    assert again == Metadata.from_json(text.encode(), "file") == METADATA
    assert again.to_json() == text
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(METADATA, certificate={"error": math.nan}).to_json()


def test_paper_grid():
    assert METADATA.shape == (1, 20001, 2001)
    assert METADATA.nbytes == 20001 * 2001 * 8
    nodes = METADATA.mu.nodes()
    assert (nodes[0], nodes[10000], nodes[-1]) == (-10.0, 0.0, 10.0)
    # Nodes are those of the decimal step, each rounded once or twice.
    np.testing.assert_allclose(nodes, np.arange(-10000, 10001) / 1000, rtol=0, atol=4e-15)
    assert METADATA.mu.step == pytest.approx(1e-3, rel=1e-12)


@every_case(
    ("start", "stop", "step", "words"),
    [
        (-1.0, 1.0, 0.3, "does not divide"),
        (-1.0, 1.0, 3.0, "does not divide"),
        (-1.0, 1.0, 2.5, "nearest step that does is 2"),
        (0.0, 0.0, 0.1, "one node"),
        (1.0, -1.0, 0.1, "start < stop"),
        (-math.inf, 1.0, 0.1, "finite"),
        (0.0, math.nan, 0.1, "finite"),
        (0.0, 1.0, 0.0, "positive"),
        (0.0, 1.0, -0.1, "positive"),
        (0.0, 1.0, math.nan, "positive"),
        (0.0, 1.0, math.inf, "positive"),
    ],
)
def test_axis_refuses(start, stop, step, words):
    refuses(f"axis mu.*{words}", Axis.from_step, "mu", start, stop, step)


@every_case("text", ["", "{", "nonsense", b"\xff\xfe", "[1]", "3", "null"])
def test_not_a_document(text):
    words = r"^file: metadata is not plain JSON"
    refuses(words, Metadata.from_json, text, "file", error=TableError)


@every_case(
    ("value", "words"),
    [
        ("NaN", "the number NaN"),
        ("-Infinity", "the number -Infinity"),
        ("1e999", "a number beyond double precision"),
        ("9" * 10_000_000, "digits"),
        (str(2**63), "an integer of more than 64 bits"),
        ("[" * 1_000_000, "nesting without end|Expecting value"),
        ("[" * 100 + "]" * 100, "nesting deeper than 8"),
        ('{"a":1,"a":1}', "a repeated key"),
        (r'"\u001b[2J"', "unprintable string"),
        (r'"\ud800"', "unprintable string"),
        ('{"a\\u0000":1}', "unprintable string"),
    ],
)
def test_what_json_is_lenient_about(value, words):
    text = METADATA.to_json().replace("1e-13", value)
    with pytest.raises(TableError, match=f"^file: metadata is not plain JSON: .*({words})"):
        Metadata.from_json(text, "file")


AXIS = {"name": "mu", "start": 0.0, "stop": 1.0, "size": 3, "unit": ""}
BAD_AXES = [
    *(None, [], "mu", AXIS | {"size": 1}, AXIS | {"size": 2.0}, AXIS | {"size": True}),
    *(AXIS | {"size": -3}, AXIS | {"stop": 0.0}, AXIS | {"start": "left"}, AXIS | {"start": None}),
    *(AXIS | {"stop": 1e-320}, AXIS | {"start": -1.7e308, "stop": 1.7e308}),
    {k: v for k, v in AXIS.items() if k != "start"},
]


def test_axes_of_one_interval_their_number_and_shapes_of_compact_tables():
    for kind, count in (("grid", 0), ("grid", 1), ("grid", 3), ("compact", 0), ("compact", 3)):
        text = changed(kind=kind, axes=[AXIS] * count)
        refuses("metadata field 'axes' is", Metadata.from_json, text, "file", error=TableError)
    assert Axis.from_step("mu", 0.0, 1.0, 1.0).nodes().tolist() == [0.0, 1.0]
    refuses("at least 2 nodes", Axis, "mu", 0.0, 1.0, 1)
    u, v = Axis("u", 0.0, 1.0, 113), Axis("v", 0.0, 1.0, 241)
    assert replace(METADATA, kind="compact", axes=(u, v)).shape == (1, 117, 245)
    one = replace(METADATA, kind="compact", axes=(v,), outcomes=[1.0, 2.0, 3.0])
    assert one.shape == (3, 1, 245)
    assert one.nbytes == 3 * 245 * 8
    assert Metadata.from_json(one.to_json(), "file") == one


MALFORMED = "metadata is incomplete or malformed"


@every_case(
    ("name", "values", "words"),
    [
        ("schema", [GONE, 0, SCHEMA + 1, str(SCHEMA), None], f"schema is .*reads {SCHEMA}"),
        ("axes", [GONE, None, AXIS, "mu", 2], f"{MALFORMED}: .*axes"),
        ("axes", [[axis, AXIS] for axis in BAD_AXES], MALFORMED),
        ("axes", [[AXIS, axis] for axis in BAD_AXES], MALFORMED),
        ("likelihood", [GONE, None, 3, ["probit"]], "likelihood"),
        ("outcomes", [GONE, [], None, 1.0, ["1"], [True], [10**15]], "outcomes"),
        ("outcomes", [[[1.0]], [0.0, 2.0]], "outcomes"),
        ("dtype", [GONE, "float16", ">f8", "object", None, ["float64"]], "dtype"),
        ("byte_order", ["big", None], "byte_order"),
        ("kind", ["spline", None, [], {}], "kind"),
        ("parameters", [None, [], 1.0, {"a": "1"}, {"a": True}, {"a": None}], "parameters"),
        ("certificate", [None, "good"], "certificate"),
        ("sha256", [None, 0], "sha256"),
        ("method", [GONE, None, 1], "method"),
        ("generator", [GONE, ["a"]], "generator"),
        ("surprise", [1], "surprise"),
    ],
)
def test_bad_field(name, values, words):
    for value in values:
        with pytest.raises(TableError, match=f"^file: .*{words}"):
            Metadata.from_json(changed(**{name: value}), "file")
