"""The demo: a pipeline and an equivalent plain Spark job are killed repeatedly, and their outputs are compared.

Then a bug is deployed with the pipeline, and undone by a rewind.

It uses the library as a user's program would. Only the command line uses this package; nothing in it is public.
"""
