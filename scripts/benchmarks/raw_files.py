"""Fetch and check the raw files of Table 1, and list its data sets."""

import sys
from argparse import Namespace

from scripts.benchmarks.data.paper import NAMES, VARIANTS, load
from scripts.benchmarks.data.registry import DataError

OPTIONS = {"data": {"required": True}}


def main(options: Namespace) -> int:
    """Load every set."""
    failed = 0
    for name in (*NAMES, *VARIANTS):
        try:
            X, y = load(name, options.data, download=True)
        except DataError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            failed = 1
        else:
            positive = "" if name == "mining" else f", {int((y > 0).sum())} positive"
            print(f"{name:11} {X.shape[0]:4} rows, {X.shape[1]:2} features{positive}")
    return failed
