"""Long measurements of videos drawn in blocks, and by several processes."""
