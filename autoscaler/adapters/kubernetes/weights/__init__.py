"""The weights of models on nodes: what nodes hold, and the free places on them."""
