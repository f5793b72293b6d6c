"""Heterogeneous steps: the schedule, the forecasts, and one run of both."""
