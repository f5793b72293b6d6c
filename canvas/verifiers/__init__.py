"""Verifiers: several steps in one pass, of which those that are right are taken."""
