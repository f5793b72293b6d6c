"""Recipe of `tiny-amused`."""
