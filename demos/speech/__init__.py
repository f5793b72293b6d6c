"""Long measurements of speech."""
