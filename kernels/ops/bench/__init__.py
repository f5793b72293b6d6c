"""`mmaccel bench kernels`."""
