"""Functions of a likelihood for other people's code: values and derivatives, to 1e-9."""
