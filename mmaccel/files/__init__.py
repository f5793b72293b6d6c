"""Files that are written whole or not at all, that somebody else may have written, and that hold pictures."""
