"""Where visual tokens come from in each family."""
