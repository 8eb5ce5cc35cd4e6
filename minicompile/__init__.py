"""minicompile: a deep-learning compiler for PyTorch in readable Python. `minicompile.compile(fn)` is the way in."""

__version__ = "0.1.0"
