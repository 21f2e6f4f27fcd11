"""The origins of weights: each lists the files of a model, and reads ranges of them."""
