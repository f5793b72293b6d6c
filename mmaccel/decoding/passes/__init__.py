"""A pass of the model: what it sees, what is read of it, and how it is taken back."""
