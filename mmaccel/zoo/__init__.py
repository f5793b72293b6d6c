"""Small trained checkpoints."""
