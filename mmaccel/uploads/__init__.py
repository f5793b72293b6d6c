"""Files of strangers: bounds of what they may be, and a process of their own in which they are decoded."""
