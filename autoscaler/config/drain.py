"""How long the requests of a deleted pod may go on: its grace period, its preStop hook and vLLM's --shutdown-timeout.

vLLM ends its requests `--shutdown-timeout` seconds after SIGTERM, which is 0 by default. A preStop hook delays the
SIGTERM, and the kubelet kills the pod after the grace period at the latest. Source: vLLM's --shutdown-timeout, 0.18.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import nan

GRACE_S = 30.0  # default of Kubernetes
_SHUTDOWN_TIMEOUT = re.compile(r"""--shutdown-timeout(?![-\w])(?:[ =]["']?(\d{1,6})\b)?""", re.ASCII)
_SLEEP = re.compile(r"\bsleep (\d{1,6})([smh]?)\b", re.ASCII)
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_RUNS_VLLM = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b")
# By the last part of the name: vllm/vllm-openai is the engine, my/vllm-exporter is a sidecar.
_VLLM_IMAGE = re.compile(r"(?:.*/)?vllm(?![^/]*(?:exporter|gateway|metrics|proxy|router|sidecar))[^/]*")


def runs_vllm(command_line: str) -> bool:
    """Return whether a command line starts vLLM."""
    return _RUNS_VLLM.search(command_line) is not None


def is_vllm_image(image: str) -> bool:
    return _VLLM_IMAGE.fullmatch(image) is not None


def shutdown_timeout_s(command_line: str) -> float:
    """Return vLLM's --shutdown-timeout; 0 if absent, NaN if it is not a number."""
    stated = _SHUTDOWN_TIMEOUT.search(command_line)
    if stated is None:
        return 0.0
    return float(stated[1]) if stated[1] else nan


def pre_stop_s(hook: object) -> float:
    """Return how long a preStop hook sleeps; 0 without a hook, NaN for another hook."""
    if not hook:
        return 0.0
    seconds = _field(_field(hook, "sleep"), "seconds")
    if isinstance(seconds, int) and 0 <= seconds < 10**9:
        return float(seconds)
    command = _field(_field(hook, "exec"), "command")
    slept = _SLEEP.search(join_words(command if isinstance(command, list) else ()))
    return float(slept[1]) * _UNITS_S[slept[2]] if slept else nan


def join_words(words: Iterable[object]) -> str:
    return " ".join(str(word) for word in words)


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None
