"""Videos and prompts: frames, positions, and the columns of visual tokens."""
