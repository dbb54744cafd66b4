"""Generates the reference pages of the docs from the docstrings, types and comments of the code."""
