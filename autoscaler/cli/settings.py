"""Converts options to settings. Invalid combinations are refused with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoscaler.cli.options import refuse_unused

if TYPE_CHECKING:
    from autoscaler.config.settings import NodeRequests, PrometheusSettings, ScrapeSettings, Settings


def daemon_settings(given: dict[str, Any]) -> Settings:
    """Make settings of options. Bad combinations end with code 2 and a sentence."""
    from pydantic import ValidationError

    from autoscaler.config.settings import (
        HttpSettings,
        KedaSettings,
        KubeSettings,
        LeaseSettings,
        Mode,
        RecordSettings,
        Settings,
        TlsFiles,
    )
    from autoscaler.config.weights.allowed import DEFAULT_RULES, SourceRules

    mode = Mode(given["mode"])
    try:
        prometheus = prometheus_settings(given)
        scrape = given.get("scrape")
        if scrape is None:
            scrape = prometheus is None
        if prometheus is None and not scrape:
            raise click.UsageError("no source of metrics: give --prometheus URL, --scrape, or both")
        in_cluster = given.get("cluster", True)
        if mode is not Mode.KEDA:
            refuse_unused(given, ("grpc_",), "without --mode keda")
        if not given["record"]:
            refuse_unused(given, ("record_",), "without --record DIR")
        if not given.get("weights"):
            refuse_unused(given, ("weights_",), "without --weights")
        keda_tls = TlsFiles(**tls_files(given, "grpc"))
        return Settings(
            mode=mode,
            period_s=given["period"],
            policies=given["policies"],
            default_policy=given["default_policy"],
            gateway_namespaces=given["gateway_namespace"],
            namespaces=given["namespace"],
            system_namespaces=given["system_namespace"],
            target_kinds=given["target_kind"],
            node_group_max=given["node_group_max"],
            team_label=given["team_label"],
            quotas=given["quotas"],
            weights=given.get("weights", False),
            weights_hub=given.get("weights_hub", ""),
            weights_sources=SourceRules(
                given.get("weights_allow_source") or DEFAULT_RULES.allowed, given.get("weights_private_source", ())
            ),
            deletion_cost=given.get("deletion_cost", False),
            node_requests=node_requests(given),
            prices=stated_prices(given),
            history=given["history"],
            state=given.get("state"),
            record=RecordSettings(folder=given["record"], max_mb=given["record_mb"], max_days=given["record_days"])
            if given["record"]
            else None,
            prometheus=prometheus,
            scrape=scrape_settings(given, scrape),
            kube=KubeSettings(context=given["context"]) if in_cluster else None,
            lease=LeaseSettings(
                enabled=given["lease"] and mode is not Mode.DRY_RUN,
                **{n: given[f"lease_{n}"] for n in ("name", "namespace") if f"lease_{n}" in given},
            ),
            keda=KedaSettings(host=given["grpc_host"], port=given["grpc_port"], tls=keda_tls)
            if mode is Mode.KEDA
            else None,
            http=None if given.get("once") else HttpSettings(host=given["http_host"], port=given["http_port"]),
        )
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}, found {fault['input']!r}" for fault in error.errors()
        )
        raise click.UsageError("; ".join(faults)) from None


def stated_prices(given: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return the prices of `price_options`. A file that cannot be used ends with code 2 and its findings."""
    from autoscaler.config.findings import PolicyError
    from autoscaler.config.price_file import load_prices

    try:
        in_file = load_prices(given["price_file"]) if given.get("price_file") else {}
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    return tuple((in_file | dict(given["price"])).items())


def node_requests(given: dict[str, Any]) -> NodeRequests | None:
    """Make settings of the options of `run`; None: nodes are not requested."""
    by = given.get("request_nodes", "off")
    if by == "off":
        refuse_unused(given, ("placeholder_", "pull_images"), "without --request-nodes")
        return None
    from autoscaler.config.settings import NodeRequests

    image = {"image": given["placeholder_image"]} if given["placeholder_image"] else {}
    return NodeRequests(by=by, pull_images=given.get("pull_images", False), **image)


def prometheus_settings(given: dict[str, Any]) -> PrometheusSettings | None:
    """Make settings of `prometheus_options`, and of `rate_window_option` where a command has it.

    None: no server is given. Raises click.UsageError, or ValidationError.
    """
    if not given["prometheus"]:
        refuse_unused(given, ("prometheus_", "rate_window"), "without --prometheus URL")
        return None
    from autoscaler.config.settings import PrometheusSettings, TlsFiles

    window = {"rate_window_s": given["rate_window"]} if "rate_window" in given else {}  # history has no use for it
    return PrometheusSettings(
        url=given["prometheus"],
        headers=given["prometheus_header"],
        token_file=given["prometheus_token_file"],
        username=given["prometheus_username"],
        password_file=given["prometheus_password_file"],
        tls=TlsFiles(**tls_files(given, "prometheus")),
        timeout_s=given["prometheus_timeout"],
        selector=given["prometheus_selector"],
        metric_prefixes=given["metric_prefix"],
        **window,
    )


def scrape_settings(given: dict[str, Any], scrape: bool) -> ScrapeSettings | None:
    """Make settings of `scrape_options`; None: nothing is read directly. Raises as `prometheus_settings`."""
    dcgm, gateways = given.get("dcgm", ()), given.get("gateway", ())
    if not gateways:
        refuse_unused(given, ("gateway_token",), "without --gateway URL")
    if not scrape:
        refuse_unused(given, ("scrape_token",), "without --scrape")
    if not (scrape or dcgm or gateways):
        refuse_unused(given, ("scrape_",), "without --scrape, --dcgm or --gateway")
        return None
    from autoscaler.config.settings import ScrapeSettings, TlsFiles

    return ScrapeSettings(
        pods=scrape,
        dcgm=dcgm,
        gateways=gateways,
        tls=TlsFiles(**tls_files(given, "scrape")),
        verify=given.get("scrape_verify", "full"),
        tokens=given.get("scrape_token", ()),
        gateway_token_file=given.get("gateway_token_file"),
        metric_prefixes=given.get("metric_prefix", ()),
    )


def tls_files(given: dict[str, Any], prefix: str) -> dict[str, Path | None]:
    """Pick certificate options; those that go together must come together."""
    files = {part: given.get(f"{prefix}_{part}") for part in ("ca", "cert", "key")}
    if (files["cert"] is None) != (files["key"] is None):
        missing = f"--{prefix}-{'key' if files['cert'] else 'cert'}"
        raise click.UsageError(f"{missing} is missing: --{prefix}-cert and --{prefix}-key go together")
    return files
