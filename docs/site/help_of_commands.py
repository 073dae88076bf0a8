"""``{help-of} tablegen build`` shows what ``tablegen build --help`` prints."""

from __future__ import annotations

import argparse
import os
from typing import Any
from unittest.mock import patch

from docutils import nodes
from docutils.parsers.rst import Directive

from tablegen.console.arguments import parser

WIDTH = "72"


def help_of(words: list[str]) -> str:
    """Return the help of a command, or of one of its subcommands."""
    command = parser()
    for word in words[1:]:
        (choices,) = (a for a in command._actions if isinstance(a, argparse._SubParsersAction))
        command = choices.choices[word]
    with patch.dict(os.environ, {"COLUMNS": WIDTH}):
        return command.format_help()


class HelpOf(Directive):
    """A command's help as a block."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the block."""
        text = help_of(self.arguments[0].split())
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("help-of", HelpOf)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
