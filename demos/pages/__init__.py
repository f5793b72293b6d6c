"""What makes pictures, tables and listings of the documentation."""
