"""Where weights come from: each origin lists the files of a model, and reads ranges of them."""
