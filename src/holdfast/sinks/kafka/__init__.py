"""Kafka as a sink. Public: `sink`. Private: its marker, its transactions, its clients, and the form of its records."""
