"""Last step of a build: write, seal and rename the table file, or find it finished."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qpruntime._typing import Array
from qpruntime.errors import TableError
from qpruntime.projection.open import open_table
from qpruntime.table_format.metadata import Metadata
from tablegen.files import hdf5
from tablegen.files.workspace import Workspace

__all__ = ["left_over", "publish", "write"]


def write(
    workspace: Workspace, document: Metadata, values: Array, certificate: dict[str, Any]
) -> Metadata:
    """Publish a table that is in memory; return its metadata, hash and certificate included."""
    data = values.astype("<f8").tobytes()
    finished = replace(document, sha256=hashlib.sha256(data).hexdigest(), certificate=certificate)
    offset = hdf5.create_file(workspace.partial, finished)
    with workspace.partial.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    publish(workspace, finished)
    return finished


def publish(workspace: Workspace, finished: Metadata) -> None:
    """Give the data of a locked workspace their metadata, a seal and the name of the target."""
    hdf5.write_metadata(workspace.partial, finished)
    workspace.check()
    hdf5.publish(workspace.partial, workspace.target)
    workspace.remove()


def left_over(workspace: Workspace, expected: Callable[[Metadata], Metadata | None]) -> Metadata:
    """Return the metadata of a table whose build was killed between rename and cleaning up.

    Raises
    ------
    TableError
        If the target is no table, or another one than `expected`, a `Recipe`'s, says of it.
    """
    refused = f"{workspace.target} exists; replace it with --force"
    try:
        metadata = open_table(workspace.target).metadata
    except TableError as error:
        raise TableError(refused) from error
    if replace(metadata, sha256="", certificate={}) != expected(metadata):
        raise TableError(refused)
    workspace.remove()
    return metadata
