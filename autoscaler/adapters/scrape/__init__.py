"""Metrics read where they are made: the pods' own /metrics, DCGM exporters and gateways; no Prometheus between."""
