"""A seeded mutation fuzzer for the opener of tables and for the command line.

Input number n of a target is a function of n alone. Workers are processes: one that dies or hangs
is reported with the number it was at, and another goes on from the next. Every worker may take
only `_HEADROOM` bytes more than it has after its imports.
"""

import contextlib
import hashlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from qpruntime.errors import NumericalError, TableError
from qpruntime.projection.open import open_table, shipped_path
from tablegen.console import describe
from tests.tools import forge
from tests.tools.command_lines import Commands

#: Seconds of processor time one input may take, unless the target allows more.
LIMIT = 1.0
# Seconds a worker may take to import and compile.
_START = 300.0
_HEADROOM = 128 << 20
_TOP = str(Path(__file__).parents[2])

NUMBERS = [0, 1, 2, 7, 8, 255, 1 << 12, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 32, (1 << 63) - 1]
NUMBERS += [(1 << 63), (1 << 64) - 1]
# What takes the place of a value in the metadata; text, because `json` would not write all of it.
TOKENS = [
    *("null", "true", "false", "0", "-0.0", "-1", "1.5", "2", "1e308", "-1e308", "1e999", "1e-320"),
    *("NaN", "Infinity", "-Infinity", "9" * 5000, "[]", "{}", '""', '"probit"', '"poisson"'),
    *('"heaviside"', "\"__import__('os')\"", '"../../etc/passwd"', '"\\u0000"', '"\\u001b[2J"'),
    *('"\\ud800"', '"grid"', '"compact"', '"float32"', '"float64"', '"object"', "[1.0]", "[0,1,2]"),
    *('{"likelihood":1}', '{"self":1}', '{"nu":1e308}', '{"nu":-1}', '"student-t"', '"binomial"'),
    *("[" * 500 + "]" * 500, "[" * 100_000, '{"a":' * 20_000, '{"a":1,"a":2}', '"' + "x" * 10_000),
]


#: What `of_kind` makes.
KINDS = ("grid", "surfaces", "heaviside", "probit", "poisson")


def of_kind(kind, path, grid):
    """Write a table of a kind to `path`, a grid by copying one; return the path."""
    source = grid if kind == "grid" else None if kind == "surfaces" else shipped_path(kind)
    path.write_bytes(source.read_bytes() if source else corpus()[-1][0])
    return path


def corpus():
    """Return (whole file, document, data) of two compact tables, a grid and surfaces."""
    found = []
    for path in (shipped_path("heaviside"), shipped_path("probit")):
        content = path.read_bytes()
        at, _ = forge.layout(path)
        found.append((content, forge.document(path), content[at.start : at.start + at.nbytes]))
    document = dict(found[0][1], kind="grid", likelihood="probit", outcomes=[1.0])
    document["axes"] = [
        {"name": "mu", "start": -2.0, "stop": 2.0, "size": 9, "unit": ""},
        {"name": "log10_sigma", "start": -1.0, "stop": 1.0, "size": 5, "unit": "log10"},
    ]
    data = np.full((1, 9, 5), 0.05).tobytes()
    found.append((forge.sealed(json.dumps(document).encode(), data), document, data))
    document, data = surfaces(document)
    found.append((forge.sealed(json.dumps(document).encode(), data), document, data))
    return found


def surfaces(document):
    """Return metadata and data of surfaces that are constant: log Z, shift, and two logs."""
    values = np.tile([-1.0, 0.1, -0.1, -0.05], (1, 13, 9))
    document = document | {"kind": "surfaces", "surfaces": ["log_z", "mean", "std_ep", "std_qp"]}
    document |= {"likelihood": "nobody's", "sha256": hashlib.sha256(values.tobytes()).hexdigest()}
    probes = [[-1.72, 1.0, -3.15], [0.56, 1.0, None]]
    document["traits"] = {"log_concave": True, "mode": "mirror", "outcomes": "labels -1 and +1"}
    document["traits"] |= {"probes": probes, "source": "module:name"}
    return document, values.tobytes()


def bytewise(content, rng):
    """Flip, set, drop, repeat and move bytes, a few times."""
    content = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        if not content:
            break
        at = int(rng.integers(len(content)))
        size = int(min(rng.choice([1, 2, 4, 8, 64, 512]), len(content) - at))
        kind = rng.integers(7)
        if kind == 0:
            content[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            number = NUMBERS[rng.integers(len(NUMBERS))].to_bytes(8, "little")
            content[at : at + size] = number[:size]
        elif kind == 2:
            content[at : at + size] = rng.bytes(size)
        elif kind == 3:
            del content[at : at + size]
        elif kind == 4:
            content[at:at] = content[at : at + size]
        elif kind == 5:
            del content[at:]
        else:
            content += rng.bytes(size)
    return bytes(content)


def leaves(value, path=()):
    """Places of all values in a document."""
    yield path
    if isinstance(value, dict):
        for name in value:
            yield from leaves(value[name], (*path, name))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from leaves(value[i], (*path, i))


def document_text(document, rng):
    """The metadata with one to three values replaced, renamed, removed or doubled."""
    text = json.dumps(document)
    for _ in range(int(rng.integers(1, 4))):
        places = list(leaves(document))
        path = places[rng.integers(len(places))]
        value = document
        for step in path:
            value = value[step]
        old = json.dumps(value)
        token = TOKENS[rng.integers(len(TOKENS))]
        if rng.random() < 0.2:
            token = str(NUMBERS[rng.integers(len(NUMBERS))])
        if rng.random() < 0.1:
            token = f"{old},{token}"
        text = text.replace(old, token, 1)
        if rng.random() < 0.1 and path and isinstance(path[-1], str):
            name = ("other", "likelihood", "self", "**")[rng.integers(4)]
            text = text.replace(f'"{path[-1]}":', f'"{name}":', 1)
    return text.encode()


def table_file(number, seeds):
    """Return mutated table number `number`."""
    rng = np.random.default_rng([1, number])
    content, document, data = seeds[rng.choice(len(seeds), p=[0.25, 0.1, 0.3, 0.35])]
    kind = rng.integers(6)
    if kind == 0:
        return bytewise(content, rng)
    if kind == 1:
        return forge.sealed(bytewise(json.dumps(document).encode(), rng), data)
    if kind == 2:
        fields = [4096, len(data), 4096 + len(data), 1000]
        for _ in range(int(rng.integers(1, 4))):
            fields[rng.integers(4)] = NUMBERS[rng.integers(len(NUMBERS))] + int(rng.integers(2))
        fields = [min(f, (1 << 64) - 1) for f in fields]
        return forge.sealed(json.dumps(document).encode(), data, fields=fields)
    if kind == 3:
        values = np.frombuffer(data).copy()
        for _ in range(int(rng.integers(1, 20))):
            values[rng.integers(values.size)] = rng.choice(
                [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 5e-324, 1e-200, 1e300, 1.0]
            )
        data = values.tobytes()
        fields = {"sha256": hashlib.sha256(data).hexdigest()}
        return forge.sealed(json.dumps(document | fields).encode(), data)
    return forge.sealed(document_text(document, rng), data)


class Opener:
    """Open a mutated table; look something up and describe it, should it open."""

    limited = True

    def __init__(self, directory):
        self.path = Path(directory) / "table.h5"
        self.seeds = corpus()
        self.mu = np.array([-3.0, -1.97, 0.0, 0.4, 1.99, 50.0])
        self.describe = lambda table: describe.text(describe.table(self.path, table.metadata))
        # What the lookups of any kind of table compile is compiled before a clock starts.
        for whole, *_ in self.seeds:
            self.path.write_bytes(whole)
            table = open_table(self.path)
            self.describe(table)
            with contextlib.suppress(TableError, NumericalError):
                self.look_up(table)

    def run(self, number):
        self.path.write_bytes(table_file(number, self.seeds))
        verify = (None, True, False)[number % 3]
        try:
            table = open_table(self.path, verify=verify)
        except TableError as error:
            if str(self.path) not in str(error):
                raise
            return "refused"
        self.describe(table)
        try:
            star = self.look_up(table)
        except (TableError, NumericalError):
            return "damaged"
        assert np.isfinite(star).all()
        assert (star > 0.0).all()
        return "opened"

    def look_up(self, table):
        return table.lookup(self.mu, [[0.05], [0.7], [3.0], [11.0]], table.metadata.outcomes[0])[0]


class Canary:
    """Misbehaves in every way at known numbers, to show that the fuzzer sees it."""

    limited = True
    seconds = 0.2

    def __init__(self, directory):
        pass

    def run(self, number):
        if number == 3:
            os.abort()
        if number == 5:
            raise RecursionError("deep")
        if number == 7:
            end = time.process_time() + 1.2 * self.seconds
            while time.process_time() < end:
                pass
        if number == 9:
            bytearray(2 * _HEADROOM)
        return "fine"


TARGETS = {"opener": Opener, "commands": Commands, "canary": Canary}


def work(target, first, stop, directory):
    """Run inputs; write the number at hand to a file, and a line for every failure."""
    numbers = os.open(f"{directory}/number", os.O_RDWR | os.O_CREAT)
    subject = TARGETS[target](directory)
    if subject.limited:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _HEADROOM, resource.RLIM_INFINITY))
    seen: dict[str, int] = {}
    for number in range(first, stop):
        os.pwrite(numbers, b"%20d" % number, 0)
        begin = time.process_time()
        try:
            result = subject.run(number)
        except Exception as error:  # what the fuzzer looks for
            print(json.dumps({"number": number, "error": repr(error)[:500]}), flush=True)
            result = "failed"
        limit = getattr(subject, "seconds", LIMIT)
        if (seconds := time.process_time() - begin) > limit:
            print(json.dumps({"number": number, "error": f"took {seconds:.1f} s"}), flush=True)
        seen[result] = seen.get(result, 0) + 1
    print(json.dumps({"seen": seen}), flush=True)


class _Worker:
    """One process and the numbers it has left."""

    def __init__(self, target, first, stop, directory, hang):
        self.hang = hang
        self.target, self.stop, self.directory = target, stop, directory
        self.number, self.since = first, time.monotonic() + _START
        Path(directory).mkdir(exist_ok=True)
        Path(directory, "number").unlink(missing_ok=True)
        self.output, self.errors = (
            tempfile.TemporaryFile("w+")  # noqa: SIM115
            for _ in range(2)
        )
        command = [sys.executable, "-m", "tests.tools.fuzz"]
        command += [target, first, stop, directory]
        self.process = subprocess.Popen(
            [str(c) for c in command],
            stdout=self.output,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": _TOP},
        )

    def poll(self):
        """Return None while it runs, else (lines of output, what ended it early)."""
        code = self.process.poll()
        with contextlib.suppress(OSError, ValueError):
            at = int(Path(self.directory, "number").read_text())
            if at != self.number or self.since > time.monotonic():
                self.number, self.since = at, time.monotonic()
        hung = code is None and time.monotonic() - self.since > self.hang
        if code is None and not hung:
            return None
        if hung:
            self.process.kill()
            self.process.wait()
        self.output.seek(0)
        lines = [json.loads(line) for line in self.output.read().splitlines()]
        self.errors.seek(0)
        words = self.errors.read()[-500:]
        self.output.close()
        self.errors.close()
        if hung:
            return lines, f"no result within {self.hang:g} s"
        if code:
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            return lines, f"worker died, {name}: {words[-500:]}"
        return lines, ""


def fuzz(target, first, stop, directory, workers=2, hang=60.0):
    """Return (how often which result was seen, list of failures); `hang` in seconds."""
    bounds = np.linspace(first, stop, workers + 1).astype(int).tolist()
    running = [
        _Worker(target, a, b, Path(directory) / f"{target}-{i}", hang)
        for i, (a, b) in enumerate(itertools.pairwise(bounds))
    ]
    seen: dict[str, int] = {}
    failures = []
    while running:
        time.sleep(0.05)
        for worker in list(running):
            ended = worker.poll()
            if ended is None:
                continue
            running.remove(worker)
            lines, reason = ended
            for line in lines:
                for result, count in line.pop("seen", {}).items():
                    seen[result] = seen.get(result, 0) + count
                if line:
                    failures.append(line)
            if reason:
                failures.append({"number": worker.number, "error": reason})
                if worker.number + 1 < worker.stop and len(failures) < 50:
                    running.append(
                        _Worker(target, worker.number + 1, worker.stop, worker.directory, hang)
                    )
    return seen, failures


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
