"""Inference from N sites to a `Posterior`: engines, schedules and the fixed point."""
