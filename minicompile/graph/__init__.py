"""Captured torch-level graph in, functional ATen forward and backward graphs out.

`build.py` is the list of steps. This package must not know of loops, kernels, devices' sizes or Python bytecode.
"""
