"""Random Python programs over tensors, each run plain and compiled: `python -m tests.random_programs --help`."""
