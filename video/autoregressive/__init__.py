"""Video that is drawn block after block, each seeing the blocks before it."""
