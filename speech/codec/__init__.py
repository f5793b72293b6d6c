"""Speech from codec tokens, block by block."""
