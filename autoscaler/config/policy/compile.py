"""Compiles policies to columns for the tick, one row per workload. Runs again only if workloads or policies change."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from pydantic import ValidationError

from autoscaler.config.findings import shown, unknown
from autoscaler.config.policy.namespace_limits import PREWARM, Excess, cap, cap_windows, find_excess
from autoscaler.config.policy.parse import PolicyBook, describe_errors
from autoscaler.config.policy.schedule import ScheduleWindows
from autoscaler.config.policy.schema import OVERRIDES, Policy, PolicySpec, Prewarm, to_document
from autoscaler.config.policy.windows import WindowsKind, read_windows
from autoscaler.config.yaml import dotted, read_scalar
from autoscaler.core.model.fleet import Workload
from autoscaler.core.model.pairs import DECODE, PREFILL
from autoscaler.core.model.spec import Spec

NO_POLICY = "(invalid)"  # requested for an invalid declaration; no policy has this name
WEIGHTS = "capacity.weightsGb"  # no column: the inventory compares it with devices
MAX_OVERRIDES = 64  # per workload; more than there are fields
_COLUMNS = tuple(field.name for field in fields(Spec))
_NOT_OF_ROLE = {
    PREFILL: ("itl_objective_s", "concurrency", "decode_tokens_per_s", "sleep_replicas"),
    DECODE: ("ttft_objective_s", "prefill_tokens_per_s", "sleep_replicas"),
}
"""Columns that do not apply to one side of a pair. Requests reach a decode workload with their prompt computed. They
leave a prefill workload with their first token. The ratio of a pair is one of replicas that serve, so none sleeps."""

_Overrides = tuple[tuple[str, str], ...]
_Request = tuple[
    str, _Overrides, tuple[float, float], str, str
]  # policy, overrides, bounds, role, namespace if limited


@dataclass(frozen=True, eq=False)
class Compiled:
    """The policies as columns, for the workloads of a fleet."""

    spec: Spec  # [W]; all NaN without a policy, so the workload is not scaled
    names: tuple[str, ...]  # [W], name of the policy; "" for none
    problems: dict[int, str]  # by row, one sentence: a missing policy, invalid overrides, or values that are capped
    windows: ScheduleWindows  # pre-warm windows; `Windows.at` returns their columns


@dataclass(frozen=True)
class _Row:
    """The result for one request, shared by all workloads with that request."""

    spec: tuple[float, ...]  # in the order of the fields of Spec
    name: str
    problem: str
    prewarm: tuple[Prewarm, ...]


class Compiler:
    """Compiles with caches: the last result while nothing changes, and rows while the policies stay the same."""

    def __init__(self) -> None:
        self._workloads: tuple[Workload, ...] = ()
        self._book: PolicyBook | None = None
        self._compiled: Compiled | None = None
        self._rows: dict[_Request, _Row] = {}

    def compile(self, workloads: tuple[Workload, ...], book: PolicyBook) -> Compiled:
        """Return the columns of these workloads; the same object while the arguments do not change."""
        if self._compiled is not None and book is self._book and workloads == self._workloads:
            return self._compiled
        known = self._rows if book is self._book else {}
        limited = book.limits is not None
        requests = [
            (each.policy, each.overrides, each.bounds, each.role, each.ref.namespace if limited else "")
            for each in workloads
        ]
        # Unused rows are dropped, so the size of the fleet bounds the cache.
        rows = {request: known.get(request) or _row(request, book) for request in dict.fromkeys(requests)}
        self._workloads, self._book, self._rows = workloads, book, rows
        self._compiled = _lay_out(requests, rows, self._compiled.windows if self._compiled is not None else None)
        return self._compiled


def compile_specs(workloads: tuple[Workload, ...], book: PolicyBook) -> Compiled:
    """Compile once, without caches."""
    return Compiler().compile(workloads, book)


def spec_row(
    policy: PolicySpec, bounds: tuple[float, float] = (0.0, np.inf), most_floor: float = np.inf, role: str = ""
) -> tuple[float, ...]:
    """Return one policy as a row, in the order and units of the fields of `Spec`.

    bounds: fewest and most replicas, which override the policy: 3 to 8 within 0 to 2 is 2 to 2.
    most_floor: the highest floor, which `bounds` cannot exceed. Whoever set the bounds may keep more replicas.
    role: of the workload in a pair; what does not apply to it is left out.
    """
    up, down, capacity = policy.scale_up, policy.scale_down, policy.capacity
    to_zero = policy.scale_to_zero
    # The floor also applies without demand; only scaleToZero leads to zero.
    floor = policy.replicas.min if to_zero.enabled else max(1, policy.replicas.min)
    row = {
        "ttft_objective_s": policy.objective.ttft,
        "itl_objective_s": policy.objective.itl,
        "attainment": policy.objective.attainment,
        "window_s": policy.objective.window,
        "priority": policy.priority,
        "weight": policy.weight,
        "headroom_share": policy.guaranteed_share or None,
        "min_replicas": min(np.clip(floor, *bounds), most_floor),
        "max_replicas": np.clip(policy.replicas.max, *bounds),
        "on_demand_floor": policy.replicas.on_demand_floor,
        "max_wait_s": policy.queue.max_wait,
        "up_step_fraction": up.max_step.fraction,
        "up_step_replicas": up.max_step.replicas or up.step_floor,
        "up_period_s": up.per,
        "up_stabilization_s": up.stabilization,
        "down_step_fraction": down.max_step.fraction,
        "down_step_replicas": down.max_step.replicas,
        "down_period_s": down.per,
        "down_stabilization_s": down.stabilization,
        "tolerance": policy.tolerance,
        "idle_after_s": (to_zero.idle_after or np.inf) if to_zero.enabled else None,
        "concurrency": capacity.concurrency,
        "prefill_tokens_per_s": capacity.prefill_tokens_per_second,
        "decode_tokens_per_s": capacity.decode_tokens_per_second,
        "target_usage": capacity.target_usage,
        "kv_target_usage": capacity.kv_cache_usage,
        "min_decode_per_prefill": policy.pair.min_decode_per_prefill,
        "max_decode_per_prefill": policy.pair.max_decode_per_prefill,
        "sleep_replicas": policy.sleep.replicas or None,
        "sleep_level": policy.sleep.level,
        "cold_start_s": policy.cold_start,
        "max_input_age_s": policy.inputs.max_age,
    }
    row |= dict.fromkeys(_NOT_OF_ROLE.get(role, ()))
    return tuple(np.nan if (value := row[name]) is None else float(value) for name in _COLUMNS)


class OverrideError(ValueError):
    """A field cannot be overridden with this value."""

    def __init__(self, path: str, problem: str, found: str, allowed: str) -> None:
        super().__init__(f"{path}: {problem}, found {found}; allowed: {allowed}")
        self.path, self.problem, self.found, self.allowed = path, problem, found, allowed


def override_value(path: str, text: str) -> object:
    """Parse the text of an override as the YAML value of a policy field. Raises OverrideError."""
    if path not in OVERRIDES:
        problem, allowed = unknown("cannot be overridden", OVERRIDES, path)
        raise OverrideError(shown(path)[1:-1], problem, shown(text), allowed)
    kind = OVERRIDES[path].kind
    try:
        value = read_scalar(text)
        kind.read(value)
    except ValueError as error:
        raise OverrideError(path, str(error), shown(text), kind.allowed) from None
    return value


def _windows(text: str) -> list[dict[str, Any]]:
    """Parse the windows that a workload states. Raises OverrideError."""
    try:
        return [to_document(window) for window in read_windows(text)]
    except ValueError as error:
        raise OverrideError(PREWARM, str(error), shown(text), WindowsKind().allowed) from None


def override(policy: Policy, overrides: _Overrides) -> Policy:
    """Return the policy with single fields replaced, validated as a whole.

    overrides: pairs of a path below `spec` and a value as written in a policy.
    Raises OverrideError for the first invalid field.
    """
    if len(overrides) > MAX_OVERRIDES:
        raise OverrideError("overrides", "too many", str(len(overrides)), f"{MAX_OVERRIDES} at most")
    spec = to_document(policy.spec)
    given: dict[str, str] = {}
    for path, text in overrides:
        value = _windows(text) if path == PREWARM else override_value(path, text)
        if path in given:
            raise OverrideError(path, f"given twice, first as {shown(given[path])}", shown(text), "once")
        given[path] = text
        section = spec
        *sections, key = path.split(".")
        for name in sections:
            section = section[name]
        section[key] = value
    try:
        return policy.model_copy(update={"spec": PolicySpec.model_validate(spec)})
    except ValidationError as error:
        loc, problem, allowed = next(describe_errors(error, PolicySpec))
        path = dotted(loc)
        if path not in given:  # two fields conflict; report the one that was given
            path = next((name for name in given if name.rpartition(".")[0] == path.rpartition(".")[0]), path)
            problem = f"leaves {dotted(loc)} {problem}"
        raise OverrideError(path, problem, shown(given.get(path, "")), allowed) from None


def limit(
    policy: Policy, overrides: _Overrides, least: float, namespace: str, book: PolicyBook
) -> tuple[PolicySpec, float, list[Excess]]:
    """Cap what the limits of a namespace cap. Returns the policy, its highest floor, and the values above the limits.

    policy: as chosen, with its overrides. least: fewest replicas that a ScaledObject states, 0 for none.
    """
    if book.limits is None:
        return policy.spec, np.inf, []
    chosen = book.policies[policy.name].spec
    most = book.limits.of(namespace, chosen, book.policies[book.default].spec)
    excess = list(find_excess(policy, dict(overrides), least, namespace, most))
    spec, most_floor = cap(policy.spec, most), most.get("replicas.min", np.inf)
    if PREWARM in dict(overrides):
        spec = cap_windows(spec, most_floor)
    return spec, most_floor, excess


def stated_weights_gb(workload: Workload, book: PolicyBook) -> float:
    """Return the weights that a workload or its policy states, in 10^9 bytes; 0: none, or what it states is invalid."""
    if text := dict(workload.overrides).get(WEIGHTS):
        try:
            return float(str(override_value(WEIGHTS, text)))
        except OverrideError:
            return 0.0
    policy = book.policies.get(workload.policy or book.default)
    return (policy.spec.capacity.weights_gb or 0.0) if policy is not None else 0.0


def _row(request: _Request, book: PolicyBook) -> _Row:
    name, overrides, bounds, role, namespace = request
    policy = book.policies.get(name or book.default)
    if name == NO_POLICY:
        return _Row((np.nan,) * len(_COLUMNS), "", "so the workload is not scaled", ())
    if policy is None:
        cause = f"policy {shown(name)} does not exist, so the workload is not scaled"
        problem = "; allowed: ".join(unknown(cause, book.policies, name, ""))
        return _Row((np.nan,) * len(_COLUMNS), "", problem, ())
    if overrides:
        try:
            policy = override(policy, overrides)
        except OverrideError as error:
            # Without the overrides, the bounds of the policy might cut a count that is right.
            problem = f"overrides cannot be used, so the workload is not scaled: {error}"
            return _Row((np.nan,) * len(_COLUMNS), "", problem, ())
    spec, most_floor, excess = limit(policy, overrides, bounds[0], namespace, book)
    return _Row(spec_row(spec, bounds, most_floor, role), policy.name, "; ".join(map(str, excess)), spec.prewarm)


def _lay_out(requests: list[_Request], rows: dict[_Request, _Row], before: ScheduleWindows | None) -> Compiled:
    place = {request: index for index, request in enumerate(rows)}
    index = np.array([place[request] for request in requests], dtype=np.int64)
    distinct = list(rows.values())
    windows = {prewarm: number for number, prewarm in enumerate(dict.fromkeys(row.prewarm for row in distinct))}
    window_row = np.array([windows[row.prewarm] for row in distinct], dtype=np.int64)
    table = np.array([row.spec for row in distinct]).reshape(len(distinct), len(_COLUMNS))
    columns = np.ascontiguousarray(table[index].T)
    return Compiled(
        spec=Spec(*columns),
        names=tuple(distinct[row].name for row in index),
        problems={number: distinct[row].problem for number, row in enumerate(index) if distinct[row].problem},
        windows=ScheduleWindows(tuple(windows), window_row[index], before),
    )
