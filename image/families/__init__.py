"""Where things are in each family of image models."""
