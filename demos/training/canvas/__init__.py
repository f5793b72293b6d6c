"""Recipe of `tiny-canvas`."""
