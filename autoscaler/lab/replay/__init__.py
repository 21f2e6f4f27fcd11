"""Replays: one trace against compiled replicas while a scaler decides. They know no network."""
