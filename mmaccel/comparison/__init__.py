"""Comparing a target with and without methods: the runs, their judgement, and how results are shown."""
