"""Endings of files, for the command line, which has no time to import what reads and writes them."""

PICTURES = (".png", ".jpg", ".jpeg", ".webp")  # written
READ_PICTURES = (*PICTURES, ".bmp")
CLIPS = (".mp4", ".gif", ".webp", ".png")
