"""Where things are in each family of recognisers, and how their weights are loaded."""
