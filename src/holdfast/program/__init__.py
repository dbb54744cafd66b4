"""What a program was, and whether a changed program can continue its state.

`description` is the value that is stored, `records` stores it, `changes` compares two of them.
"""
