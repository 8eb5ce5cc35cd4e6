"""Tests of the programs between stages."""
