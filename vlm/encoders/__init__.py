"""Methods on vision models that generate nothing: CLIP, VGGT and their like."""
