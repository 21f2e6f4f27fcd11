"""Advice for refusals of managed backends."""

import pytest

from autoscaler.adapters.prometheus.managed_backends import advice


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("host", "proxy"),
    [
        ("aps-workspaces.eu-west-1.amazonaws.com", "aws-sigv4-proxy"),
        ("monitoring.googleapis.com", "frontend of Google Managed Prometheus"),
        ("x-1a2b.westeurope.prometheus.monitor.azure.com", "aad-auth-proxy"),
    ],
)
def test_a_proxy_is_named_when_a_managed_backend_refuses(host: str, proxy: str, status: int):
    assert proxy in advice(host, status)


@pytest.mark.parametrize(
    ("host", "status"),
    [("monitoring.googleapis.com", 400), ("prometheus.team.svc", 401), ("notamazonaws.com", 403), (None, 401)],
)
def test_nothing_is_advised_when_nothing_is_known(host: str | None, status: int):
    assert advice(host, status) == ""
