"""Caches across steps: whole steps or blocks reused while little changes."""
