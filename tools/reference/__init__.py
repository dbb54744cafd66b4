"""The reference pages of the docs, drawn from the code: what it says of itself, and nothing else."""
