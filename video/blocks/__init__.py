"""Methods that work on the blocks of a transformer within one step, and on some of its tokens."""
