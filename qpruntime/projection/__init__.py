"""A cavity in, a Gaussian out: by table, by quadrature or by samples."""
