"""Files as a sink. Public: `sink`. Private: the checks, the names and records in its folder, and the gate."""
