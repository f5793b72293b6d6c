"""A model, accelerated, over many inputs: `mmaccel batch`."""
