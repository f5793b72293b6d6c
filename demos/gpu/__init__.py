"""Benchmarks for a machine with a GPU, of a few minutes each."""
