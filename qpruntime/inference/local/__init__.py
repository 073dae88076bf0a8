"""Corrections of predictions by the nearest rows, where M inducing inputs are too coarse.

The model is f = phi^T w + g: `qpruntime.inference.sparse` takes the rest g as independent between
rows. Now g is dependent within the k nearest rows of a point and the point, with its true
covariance R = k - phi phi^T: their sites are removed from the posterior of w, and applied to f
instead. Nothing changes if R is 0. The result is the dense posterior of these sites if
all rows are neighbours.

Rows at one *place*, that is with equal inputs, count as one neighbour: their sites add up exactly,
including white noise in the kernel.

The modules, from the ground up; each imports from those above it:

`neighbours`
    ``distinct(A) -> (first, group)``: equal rows of a matrix found, whatever their order.
`storage`
    Arrays in unnamed files, for rows that do not fit into memory.
`neighbours`
    ``metric(kernel, d)``: factors for the inputs, such that distances are in length-scales.
`neighbours`
    `Cells`: an inverted file, for many features; it is on disk if the rows are.
`neighbours`
    ``neighbours_of(points, centres)``: a tree, or cells; ``query(points, k)``.
`blocks`
    ``within(kernel, X)``: prior covariances inside many small sets (b, k, d).
`blocks`
    `Places`: sites of rows, summed by place.
`blocks`
    `Known`, the posterior of w; `Features`: the features of places, computed when first needed.
`linalg`
    Kernels for the correction of a block of points.
`posterior`
    `LocalPosterior`: a `SparsePosterior` whose predictions are corrected; ``local_of`` makes one.
"""
