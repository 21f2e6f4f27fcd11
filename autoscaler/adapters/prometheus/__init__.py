"""Prometheus and what speaks its query API: VictoriaMetrics, Thanos, Mimir. Per-pod readings by a few queries."""
