"""Caches: what of a canvas is computed again in each step."""
