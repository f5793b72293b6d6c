"""The benchmark of canvases."""
