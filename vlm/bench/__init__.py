"""`mmaccel bench vlm` and `mmaccel bench language`."""
