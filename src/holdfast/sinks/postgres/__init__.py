"""PostgreSQL as a sink. Public: `sink`. Private: its ledger, its two commit methods, and the copy on the executors."""
