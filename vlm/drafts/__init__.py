"""Drafts for text decoders: exact text in fewer passes."""
