"""Sinks: the contract, and one file for each."""
