"""Hyper-parameters integrated: where their density is looked at, and what weighs how much."""
