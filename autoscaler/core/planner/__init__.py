"""The planning recommender: replicas from learned speed, offered load and what a shadow fleet would have missed."""
