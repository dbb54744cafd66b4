"""The sink for Apache Iceberg tables, through PyIceberg."""
