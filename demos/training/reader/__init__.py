"""Recipe of `tiny-reader`."""
