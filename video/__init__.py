"""Faster video and image diffusion transformers."""
