"""Policies of a finished prompt, which say what tokens of it the cache keeps."""
