"""How `tiny-wan`, the small text-to-video model, is trained."""
