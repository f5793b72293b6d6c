"""Benchmarks: one result format, and the pages that are made from the rows of all of them."""
