"""Sets of data: the raw files of the paper, small raw sets, tables of thousands of rows, draws."""
