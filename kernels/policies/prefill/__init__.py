"""Policies of a prompt, which say what blocks of keys each block of queries reads."""
