"""Quality against time of a method on the user's own model, and the plan that reaches a goal."""
