"""Policies: their schema, reading and reloading their files, and compiling them to columns for the tick."""
