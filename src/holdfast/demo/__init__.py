"""The demo: a pipeline and its plain Spark twin, killed again and again, and what their outputs hold at the end.

It is a program of a user's: it uses the library as anybody would, and nothing of the library knows it.
"""
