"""Compact tables: one ratio over the own coordinates of a likelihood."""
