"""Independent calls carried out: in this process, by its threads, or on a cluster.

And how many threads BLAS may have meanwhile.
"""
