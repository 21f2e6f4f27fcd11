"""What may stand in the metadata of our trigger. It is written by tenants: every key, size and value is checked.

Used by the service for requests and by `check` for manifests. What a policy or an override means is known elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autoscaler.config.findings import one_of, shown

POLICY = "policy"
SECRETS = frozenset({"caCert", "tlsClientCert", "tlsClientKey"})  # normally in a TriggerAuthentication; never repeated
SWITCHES = frozenset({"enableTLS", "unsafeSsl"})
KEDA_KEYS = frozenset({"scalerAddress"}) | SWITCHES | SECRETS  # read by KEDA, passed on to us

MAX_KEYS = 64
MAX_VALUE_CHARS = 1024
MAX_SECRET_CHARS = 64 << 10  # a bundle of certificates
_BOOLEANS = frozenset({"1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"})
_ADDRESS = re.compile(r"[A-Za-z0-9._~:/\[\]%-]{1,512}")
_POLICY_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_OVERRIDE = re.compile(r"[a-z][A-Za-z]{0,31}(\.[a-z][A-Za-z]{0,31}){0,3}")


def problems(metadata: Mapping[str, str], overridable: frozenset[str]) -> dict[str, str]:
    """Say what is wrong, by key; {}: nothing. A problem names what is allowed, and the value unless it may be a secret.

    overridable: paths of the policy fields that a trigger may state, "objective.ttft".
    """
    if len(metadata) > MAX_KEYS:
        return {"": f"{len(metadata)} keys; allowed: at most {MAX_KEYS}"}
    found = {key: problem for key, value in metadata.items() if (problem := _problem(key, value, overridable))}
    if POLICY not in metadata:
        found[POLICY] = "missing; allowed: the name of a policy"
    if "scalerAddress" not in metadata:
        found["scalerAddress"] = "missing; allowed: host:port of this scaler"
    return found


def overrides(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the policy fields that the trigger states itself, sorted."""
    return tuple(sorted((key, value) for key, value in metadata.items() if key != POLICY and key not in KEDA_KEYS))


def _problem(key: str, value: str, overridable: frozenset[str]) -> str:
    if key in SECRETS:
        return "" if len(value) <= MAX_SECRET_CHARS else f"{len(value)} characters; allowed: {MAX_SECRET_CHARS}"
    if len(value) > MAX_VALUE_CHARS:
        return f"{len(value)} characters; allowed: {MAX_VALUE_CHARS}"
    if key in SWITCHES:
        return "" if value in _BOOLEANS else f"{shown(value)}; allowed: true, false"
    if key == "scalerAddress":
        return "" if _ADDRESS.fullmatch(value) else f"{shown(value)}; allowed: host:port"
    if key == POLICY:
        return "" if _POLICY_NAME.fullmatch(value) else f"{shown(value)}; allowed: lower-case letters, digits, '-', '.'"
    if key not in overridable or not _OVERRIDE.fullmatch(key):
        # The value of a key that nobody knows may be anything, so it is not repeated.
        return f"unknown key; allowed: {one_of({POLICY} | KEDA_KEYS | overridable, key)}"
    return "" if value.isprintable() and value.strip() else f"{shown(value)}; allowed: printable text"
