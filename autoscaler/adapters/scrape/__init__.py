"""Read metrics where they are made: the pods' own /metrics, DCGM exporters and gateways, without a Prometheus between."""
