"""PostgreSQL as a sink: the sink, its ledger, its two commit methods, and the copy on the executors."""
