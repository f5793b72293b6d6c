"""Methods that leave out or merge visual tokens."""
