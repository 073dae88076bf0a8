"""The second quadrature rule, by which tables are certified."""
