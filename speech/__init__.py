"""Streaming speech: recognition that shows words while they are spoken, and exact block-wise codec decoding."""

__all__: list[str] = []
