"""How `tiny-janus`, the small text-to-image model, is trained."""
