"""Checks the metadata of our trigger. Tenants write it, so every key, size and value is checked.

It is used for requests, for ScaledObjects in the cluster and by `check` for manifests; it knows nothing of gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autoscaler.config.findings import one_of, shown, unknown
from autoscaler.config.policy.compile import OverrideError, override, override_value
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.policy.schema import OVERRIDES, Policy

POLICY = "policy"  # names a policy, which marks the trigger as ours
SECRETS = frozenset({"caCert", "tlsClientCert", "tlsClientKey"})  # normally in a TriggerAuthentication; never shown
SWITCHES = frozenset({"enableTLS", "unsafeSsl"})
KEDA_KEYS = frozenset({"scalerAddress"}) | SWITCHES | SECRETS  # read by KEDA, passed on to us

MAX_KEYS = 64
MAX_VALUE_CHARS = 1024
MAX_SECRET_CHARS = 64 << 10  # a bundle of certificates
_BOOLEANS = frozenset({"1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"})
_ADDRESS = re.compile(r"[A-Za-z0-9._~:/\[\]%-]{1,512}")


def problems(metadata: Mapping[str, str], book: PolicyBook) -> dict[str, str]:
    """Return the problems by key. A problem states the allowed values, and the value unless it may be secret.

    In addition to the name of the policy, single fields of the policy may be set by their path: "objective.ttft".
    """
    found = key_problems(metadata)
    name = metadata.get(POLICY)
    if name is None and POLICY in found:
        found[POLICY] = f"missing; allowed: {one_of(book.policies, '')}"
    elif name is not None and name not in book.policies and len(metadata) <= MAX_KEYS:
        found.setdefault(POLICY, "; allowed: ".join(unknown(f"no policy {shown(name)}", book.policies, name, "")))
    return found or _contradiction(metadata, book.policies[metadata[POLICY]])


def key_problems(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the problems that do not depend on the policies, as `problems` does."""
    if len(metadata) > MAX_KEYS:
        return {"number of keys": f"{len(metadata)}; allowed: at most {MAX_KEYS}"}
    found = {key: problem for key, value in metadata.items() if (problem := _problem(key, value))}
    if POLICY not in metadata:
        found[POLICY] = "missing; allowed: the name of a policy"
    if "scalerAddress" not in metadata:
        found["scalerAddress"] = "missing; allowed: host:port of this scaler"
    return found


def overrides(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the policy fields that the trigger overrides, sorted."""
    return tuple(sorted((key, value) for key, value in metadata.items() if key != POLICY and key not in KEDA_KEYS))


def _problem(key: str, value: str) -> str:
    if key in SECRETS:
        return "" if len(value) <= MAX_SECRET_CHARS else f"{len(value)} characters; allowed: {MAX_SECRET_CHARS}"
    if key != POLICY and key not in KEDA_KEYS and key not in OVERRIDES:
        # The value of an unknown key may be a secret, so it is not shown.
        return "; allowed: ".join(unknown("unknown key", {POLICY} | KEDA_KEYS | set(OVERRIDES), key))
    if len(value) > MAX_VALUE_CHARS:
        return f"{len(value)} characters; allowed: {MAX_VALUE_CHARS}"
    if key in SWITCHES:
        return "" if value in _BOOLEANS else f"{shown(value)}; allowed: true, false"
    if key == "scalerAddress":
        return "" if _ADDRESS.fullmatch(value) else f"{shown(value)}; allowed: host:port"
    if key in OVERRIDES:
        try:
            override_value(key, value)
        except OverrideError as error:
            return _describe(error)
    return ""


def _contradiction(metadata: Mapping[str, str], policy: Policy) -> dict[str, str]:
    """Check the overridden fields against the rest of the policy."""
    try:
        override(policy, overrides(metadata))
    except OverrideError as error:
        return {error.path: _describe(error)}
    return {}


def _describe(error: OverrideError) -> str:
    return f"{error.problem}, found {error.found}; allowed: {error.allowed}"
