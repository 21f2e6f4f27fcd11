"""Proofs, made from many studies: policies beside each other and beside the bound, and what people see of it."""
