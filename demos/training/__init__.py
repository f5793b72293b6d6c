"""The recipes that trained the models of :mod:`mmaccel.zoo`."""
