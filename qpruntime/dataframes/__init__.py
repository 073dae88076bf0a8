"""Tables as people have them, read into numbers: which columns are numbers, which are levels.

`readers` reads the columns of data frames of any library; `encoding` keeps what a fit has seen of
them and turns rows into a matrix of numbers, levels by their codes. `lazy_rows` reads arrays on
disk or of dask in parts.
"""
