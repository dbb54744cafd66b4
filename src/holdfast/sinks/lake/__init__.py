"""What the sinks for lake tables share: the table's folder, the files that Spark writes there, and their records."""
