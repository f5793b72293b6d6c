"""How image tokens are drafted, verified and laid out, whatever the family."""
