"""Where things are in the pipelines that fill canvases."""
