"""Heads that read the hidden states of the model they draft for, and the guesses that are made with them."""
