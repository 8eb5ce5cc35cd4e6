"""Tests of the graph stage."""
