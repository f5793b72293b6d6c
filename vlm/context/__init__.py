"""Prompts that are kept on disk, and begun with again."""
