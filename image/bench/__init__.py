"""`mmaccel bench image`."""
