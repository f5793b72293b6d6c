"""Rules that say which tokens of a block are committed in a step."""
