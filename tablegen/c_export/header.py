"""Write a compact table as one header of C99: its coefficients, and what evaluates them.

The text of the header beside its numbers comes from the ``.h`` files of this folder: `common.h` is
the same for all, one more has the likelihood's closed forms and coordinates, and `entries.h` what a
program calls. Nothing is allocated, and nothing is read when it runs.
"""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

import numpy as np

from qpruntime import _special
from qpruntime._formatting import size
from qpruntime._typing import ArrayLike
from qpruntime._validation import path_of
from qpruntime.errors import InputError, TableError
from qpruntime.projection.open import open_table
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Metadata
from tablegen.files.target import replaced, resolve

__all__ = ["KNOWN", "export_c", "header"]

#: Likelihoods whose closed forms are written in C, and what the table does not answer for.
KNOWN = {
    "heaviside": "The table answers for every cavity.",
    "poisson": "Counts above %d have no row: NaN where both peaks of the tilted density matter.",
    "probit": "The table answers for every cavity.",
}
_LINE = 4
_TAILS = ("_TAIL_1", "_TAIL_2", "_TAIL_3", "_TAIL_4", "_TAIL_5", "_TAIL_6")


def export_c(
    table: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
) -> tuple[Path, Metadata]:
    """Write a compact table as a header of C99.

    Parameters
    ----------
    table : str or path
        A compact table, or the name of an installed or shipped one.
    output : path, optional
        A file that ends in ``.h``; by default ``qp_NAME.h`` in the working directory.
    force : bool
        Replace an existing file.

    Returns
    -------
    path : Path
        Absolute.
    metadata : Metadata

    Raises
    ------
    InputError
        If the table is not compact or its likelihood is not known in C, or the name does not end
        in ``.h``.
    TableError
        If the table is damaged, or the file cannot be made.
    """
    opened = open_table(table, verify=True)
    text = header(opened)
    named = path_of(f"qp_{opened.metadata.likelihood}.h" if output is None else output, "output")
    if named.suffix != ".h":
        raise InputError(f"a header ends in .h, got {named.name}; name it {named.stem}.h")
    target = resolve(named, force=force)
    if target.exists() and not force:
        raise TableError(f"{target} exists; replace it with --force")
    with replaced(target) as partial:
        partial.write_text(text, encoding="ascii")
    return target, opened.metadata


def header(table: Table) -> str:
    """Return the text of the header; raises as `export_c` does of a table that has none."""
    name = table.metadata.likelihood
    if table.metadata.kind != "compact" or name not in KNOWN:
        raise InputError(
            f"{table.path} holds {table.metadata.kind} of {name!r}: C is written of compact "
            f"tables of {', '.join(KNOWN)}, for example of {next(iter(KNOWN))}-compact"
        )
    upper = name.upper()
    body = _file(f"{name}.h").replace("TAILS\n", _tails()).replace("TERMS", str(len(_TAILS)))
    parts = [
        _opening(table, name, upper),
        _file("common.h"),
        '#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        "/* Define QP_EXPORT in the one file that is to give these functions to a linker. */\n"
        "#ifndef QP_API\n#ifdef QP_EXPORT\n#define QP_API\n#else\n"
        "#define QP_API static inline\n#endif\n#endif\n",
        _data(table, name, upper),
        body,
        _file("entries.h").replace("NAME", name),
        f"#ifdef __cplusplus\n}}\n#endif\n\n#endif /* QP_{upper}_H */\n",
    ]
    return "\n".join(parts)


def _file(name: str) -> str:
    return files("tablegen.c_export").joinpath(name).read_text(encoding="ascii")


def _opening(table: Table, name: str, upper: str) -> str:
    """Return what the file is, its certificate and its hash, and the guard."""
    metadata, answers = table.metadata, KNOWN[table.metadata.likelihood]
    tolerance = metadata.certificate["tolerance"]
    return f"""/* Quantile propagation of one observation, likelihood {name!r}: log Z,
   moments and sigma* of p(y|f) N(f | mu, sigma^2). C99 and C++, nothing allocated.

   sigma* over sigma_EP is a quintic spline, certified to {tolerance:g}, relative.
   {answers % len(table.values) if "%" in answers else answers}
   Coefficients: {size(metadata.nbytes)}, sha256 {metadata.sha256}.
   Written by tablegen export --format c. */

#ifndef QP_{upper}_H
#define QP_{upper}_H
"""


def _numbers(values: ArrayLike) -> str:
    """Doubles that read back as they are, some on a line."""
    words = [repr(float(v)) for v in np.ravel(values)]
    lines = [", ".join(words[i : i + _LINE]) for i in range(0, len(words), _LINE)]
    return "{" + ",\n".join(lines) + "}"


def _data(table: Table, name: str, upper: str) -> str:
    """Axes and coefficients; the last two dimensions are those of the axes."""
    rows, first, second = table.values.shape
    axes = table.axes()
    lines = [f"#define QP_{upper}_SECOND {second}"]
    lines.append(f"static const double qp_{name}_second[] = {_numbers(axes[3:6])};")
    if first > 1:
        lines.append(f"#define QP_{upper}_FIRST {first}")
        lines.append(f"static const double qp_{name}_first[] = {_numbers(axes[:3])};")
    if rows > 1:
        lines.append(f"#define QP_{upper}_ROWS {rows}")
    lines.append(f"static const double qp_{name}_table[] = {_numbers(table.values)};")
    return "\n".join(lines) + "\n"


def _tails() -> str:
    """Return the polynomials of `qpruntime._special.power_peak_ratio`, highest power first."""
    tails = [np.atleast_1d(getattr(_special, tail)) for tail in _TAILS]
    most = max(map(len, tails))
    rows = ",\n        ".join(_numbers(t) for t in tails)
    rows = re.sub(r",\n(?=-?\d)", ", ", rows)
    counts = ", ".join(str(len(t)) for t in tails)
    return (
        f"    static const double tails[TERMS][{most}] = {{\n        {rows}}};\n"
        f"    static const int counts[TERMS] = {{{counts}}};\n"
    )
