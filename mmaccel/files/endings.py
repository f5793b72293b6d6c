"""Endings of files, for the command line, which has no time to import what reads and writes them."""

PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}  # written, with Pillow's names
READ_PICTURES = (*PICTURES, ".bmp")
CLIPS = (".mp4", ".gif", ".webp", ".png")
