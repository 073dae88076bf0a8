"""Projection of a tilted density to a Gaussian: by table, by quadrature or by samples."""
