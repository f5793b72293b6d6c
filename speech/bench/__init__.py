"""`mmaccel bench speech`."""
