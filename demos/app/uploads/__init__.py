"""Files of visitors: how many may lie here, and how they are read apart from the server."""
