"""Schedules, forecasts and corrections over the steps of any sampler; nothing here knows a pipeline."""
