"""Iteration to the fixed point of sites: one loop of sweeps for every engine, and schedules."""
