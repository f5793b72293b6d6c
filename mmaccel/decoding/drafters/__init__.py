"""What drafts text: lookups, trees of guesses, and the methods that are made of them."""
