"""What to attend to: small pure functions that return a BlockPlan or token numbers."""
