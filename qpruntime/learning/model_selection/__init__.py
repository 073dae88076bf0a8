"""Fits without arguments: kernels judged by rows held out, an engine for the rows there are."""
