"""Corrections of predictions by the nearest rows, where M inducing inputs are too coarse.

The model is f = phi^T w + g: `qpruntime.inference.sparse` takes the rest g as independent between
rows. Now g is dependent within the k nearest rows of a point and the point, with its true
covariance R = k - phi phi^T: their sites are removed from the posterior of w, and applied to f
instead. Nothing changes if R is 0. The result is the dense posterior of these sites if
all rows are neighbours.

Rows at one *place*, that is with equal inputs, count as one neighbour: their sites add up exactly,
including white noise in the kernel.
"""
