"""A video that goes on, watched with bounded memory."""
