"""Functions of likelihoods in plain array operations, for any library that derives them itself."""
