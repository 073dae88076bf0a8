"""Inference for series: one input and a Markov kernel, in time and memory proportional to N."""
