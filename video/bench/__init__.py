"""`mmaccel bench video` and `mmaccel bench unet`."""
