"""Audio: from files and chunks, where speech is in it, and how it grows."""
