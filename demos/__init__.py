"""Example scripts and the training recipes of the small models in :mod:`mmaccel.zoo`."""
