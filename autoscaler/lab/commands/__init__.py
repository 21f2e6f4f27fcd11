"""`simulate`, `simulate fit` and `replay`: files and servers in, comparisons out."""
