"""`mmaccel bench video`."""
