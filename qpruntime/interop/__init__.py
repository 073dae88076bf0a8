"""Functions of a likelihood for other people's code: values and derivatives, to 1e-9."""


# --- Functions of likelihoods in plain array operations, for any library that derives them itself.
