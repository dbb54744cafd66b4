"""One module per verb. Each has the verb's function, whose docstring is its help, and `SHAPES`: its JSON documents."""
