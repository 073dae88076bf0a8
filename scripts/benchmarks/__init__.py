"""Benchmarks: their sets of data, their peers, their sums, and one module for each command.

``python -m scripts.benchmarks`` lists the commands.
"""
