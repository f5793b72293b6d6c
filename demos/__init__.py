"""The demo app, scripts that measure a page each, and training recipes of the models in :mod:`mmaccel.zoo`."""

if __name__ != "mmaccel.demos":  # imported from the root of a checkout, every module would be there twice
    raise ImportError("this folder is mmaccel.demos: write `from mmaccel import demos`")
