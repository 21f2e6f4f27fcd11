"""Prometheus and servers with its query API: VictoriaMetrics, Thanos, Mimir."""
