"""Where things are in the transformers and pipelines of each family."""
