"""The base class for a sink into one's own database, which stores rows and a key in one transaction."""
