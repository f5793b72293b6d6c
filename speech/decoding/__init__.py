"""Caches, drafts and fewer audio tokens for the decoders of recognisers."""
