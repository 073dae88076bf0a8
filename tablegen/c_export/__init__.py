"""Compact tables as C: one header each, with the table, the spline and the closed forms in it."""
