"""PostgreSQL as a sink. Public: `sink`. Private: its ledger, its two commit methods, its connections, and the copy."""
