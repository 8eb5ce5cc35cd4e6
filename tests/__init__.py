"""Tests of minicompile; the tree mirrors the package."""
