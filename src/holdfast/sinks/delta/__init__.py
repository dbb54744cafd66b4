"""A Delta Lake table as a sink."""
