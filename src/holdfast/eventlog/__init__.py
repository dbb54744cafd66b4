"""The event log: committed events in one global sequence, the cursors that read it and the worker that handles them."""
