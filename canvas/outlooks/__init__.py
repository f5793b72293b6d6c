"""Methods that change how sure a model seems."""
