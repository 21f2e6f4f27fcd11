"""Replay runs: a scaler decides the replica count while compiled replicas serve one trace. No network is involved."""
