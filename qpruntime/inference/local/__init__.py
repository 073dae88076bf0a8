"""The nearest rows of a point correct what M inducing inputs say of it.

The model is f = phi^T w + g: `qpruntime.inference.sparse` takes the rest g as independent between
rows. For one point, let it be dependent within the k nearest rows and the point, with its true
covariance R = k - phi phi^T: their sites are taken out of the posterior of w, and put back where
they belong, on f. Where R is 0 nothing changes; with all rows for neighbours it is the dense
posterior of these sites.

Rows at one *place*, that is with equal inputs, count as one neighbour: their sites add up, exactly,
white noise in the kernel included.

What is where, from the ground up; each module imports from those above it:

`neighbours`
    ``distinct(A) -> (first, group)``: equal rows of a matrix found, whatever their order.
`storage`
    Arrays in files without a name, for rows that do not fit into memory.
`neighbours`
    ``metric(kernel, d)``: what inputs are multiplied by, so that distances are in length-scales.
`neighbours`
    `Cells`: an inverted file, for many features; on the disk where rows are.
`neighbours`
    ``neighbours_of(points, centres)``: a tree, or cells; ``query(points, k)``.
`blocks`
    ``within(kernel, X)``: prior covariances inside many small sets (b, k, d).
`blocks`
    `Places`: sites of rows, summed up by place.
`blocks`
    `Known`, the posterior of w; `Features`: what it says of places, made when first needed.
`linalg`
    The correction of a block of points: kernels.
`posterior`
    `LocalPosterior`: a `SparsePosterior` whose predictions are corrected; ``local_of`` makes one.
"""
