"""How `tiny-onevision`, the small video language model, is trained."""
