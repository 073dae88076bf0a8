"""What a checkout has beside its packages: benchmarks, studies, examples, and the pages' tables.

Nothing here is installed. ``python -m scripts.ROOM NAME``, at the top of the checkout, runs the
command NAME of one of the rooms `benchmarks`, `studies`, `examples` and `reports`; without a name
it lists them.
"""
