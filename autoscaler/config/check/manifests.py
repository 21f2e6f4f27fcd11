"""Checks the manifest of a workload for problems with scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import nan

from autoscaler.catalog.node_labels import KARPENTER_LABEL, NODE_POOL_LABELS
from autoscaler.catalog.scale_targets import BY_KIND, EACH, GROUPS, SCALED, Place, ScaleTarget
from autoscaler.config.annotations import ANNOTATIONS, OVERRIDE, PREFIX, WINDOWS, names, override_path, read
from autoscaler.config.drain import GRACE_S, is_vllm_image, join_words, pre_stop_s, runs_vllm, shutdown_timeout_s
from autoscaler.config.findings import Finding, one_of, unknown
from autoscaler.config.policy.compile import OverrideError, limit, override, override_value
from autoscaler.config.policy.namespace_limits import PREWARM, Excess
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.policy.schema import Policy
from autoscaler.config.values import Integer
from autoscaler.config.yaml import Document, Loc, dotted

BUILT_IN = ".k8s.io"  # ends the groups of Kubernetes itself: networking.k8s.io
_GRACE = Integer(0, 10**9)
_DEV_MODE = "VLLM_SERVER_DEV_MODE"
_SLEEP_OPTIONS = {
    "--enable-sleep-mode": "its replicas cannot sleep",
    "--enable-server-load-tracking": "requests that come while a replica falls asleep wait unseen until it wakes",
}
_MARGIN_S = 10.0  # between the end of the drain and the kill


def check_workload(document: Document, book: PolicyBook) -> Iterator[Finding]:
    """Check the annotations of a workload, and with a policy also fields that would undo its scaling."""
    annotations = at(document.value, "metadata", "annotations")
    if annotations is not None and not isinstance(annotations, dict):
        yield document.finding(("metadata", "annotations"), "not a mapping", f"a mapping, as {PREFIX}policy: NAME")
    ours = _our_annotations(document)
    yield from _annotations(document, ours, book)
    yield from _misplaced(document)
    row = known_kind(document.value)
    parts = row.pods if row is not None else ()
    for template in (template for part in parts if not part.bare for template in items(document.value, part.place)):
        loc = (*template, "metadata", "annotations")
        for key in mapping(at(document.value, *loc)):
            if key.startswith(PREFIX):
                allowed = f"the annotations of the {at(document.value, 'kind')} itself"
                yield document.warning((*loc, key), "no effect on the pods", allowed)
    if not ours:
        return
    if f"{PREFIX}policy" not in ours:
        problem = "no annotation names a policy, so only a ScaledObject could"
        yield document.warning(("metadata", "annotations"), problem, f"{PREFIX}policy as well")
        return
    if f"{PREFIX}role" in ours and f"{PREFIX}service" not in ours:
        problem = "no service names the other workload of its pair, so it is sized alone"
        yield document.warning(("metadata", "annotations", f"{PREFIX}role"), problem, f"{PREFIX}service as well")
    count = row.replicas if row is not None else ("spec", "replicas")
    if at(document.value, *count) is not None:
        problem = "sets the count back at every apply"
        yield document.warning(count, problem, "no replicas in the manifest")
    for part in parts:
        for template in items(document.value, part.place):
            pod = template if part.bare else (*template, "spec")
            yield from _drain(document, pod)
            yield from _node_pool(document, pod)
            if _sleeps(ours, book):
                yield from _sleep(document, pod)
    if row is not None and (problem := impossible(row, document.value)):
        why, _, allowed = problem.partition("; allowed: ")
        yield document.finding(("spec",), f"cannot be scaled: {why}", allowed)


def check_unscaled(document: Document) -> Iterator[Finding]:
    """Find our annotations on objects that are not scaled.

    An object with an owner has them from its owner, as a ReplicaSet from its Deployment. An object without pods may
    pass them on to a Deployment, as KServe's InferenceService does.
    """
    if not _our_annotations(document) or at(document.value, "metadata", "ownerReferences"):
        return
    kind, row = str(at(document.value, "kind")), known_kind(document.value)
    allowed = one_of(SCALED)
    if row is not None and row.refusal:
        why, allowed = row.why_refused
        if row.passes_on:
            yield document.warning(("kind",), f"is not scaled: {why}; it passes its annotations on", allowed)
        else:
            yield document.finding(("kind",), f"is not scaled: {why}", allowed)
    elif is_other_group(at(document.value, "apiVersion")):
        problem = "is scaled only if the daemon's --target-kind names its kind, or if it passes its annotations on"
        group = api_group(at(document.value, "apiVersion"))
        yield document.warning(("kind",), problem, f"--target-kind=<plural>.{group}, or one of {allowed}")
    elif at(document.value, "spec", "template") is not None or kind.lower() in map(str.lower, SCALED):
        yield document.finding(("kind",), *unknown("is not scaled", SCALED, kind))
    else:
        yield document.warning(("kind",), "is not scaled, unless it passes its annotations on to one that is", allowed)


def _our_annotations(document: Document) -> dict[str, object]:
    annotations = mapping(at(document.value, "metadata", "annotations"))
    return {key: value for key, value in annotations.items() if key.startswith(PREFIX)}


def _misplaced(document: Document) -> Iterator[Finding]:
    """Find misspelt annotations and labels that have no effect."""
    domain = PREFIX.removesuffix("/")
    for key in mapping(at(document.value, "metadata", "annotations")):
        prefix, slash, _ = key.partition("/")
        if slash and prefix != domain and get_close_matches(prefix[:100], [domain], cutoff=0.85):
            yield document.finding(("metadata", "annotations", key), "unknown prefix", PREFIX)
    for key in mapping(at(document.value, "metadata", "labels")):
        if key.startswith(PREFIX):
            yield document.warning(("metadata", "labels", key), "no effect as a label", "an annotation")


def at(value: object, *loc: str | int) -> object:
    """Return the value at a place, or None."""
    for part in loc:
        if isinstance(value, dict) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def text_at(value: object, *loc: str | int) -> str:
    """Return the text at a place; "": there is none, or something else."""
    found = at(value, *loc)
    return found if isinstance(found, str) else ""


def api_group(api_version: object) -> str:
    """Return the API group of an apiVersion, "apps" of "apps/v1"; "" for the core group and for anything but text."""
    return api_version.rpartition("/")[0] if isinstance(api_version, str) else ""


def is_other_group(api_version: object) -> bool:
    """Return whether an API group is that of custom kinds that are not known. Only the API server can tell them."""
    group = api_group(api_version)
    return "." in group and not group.endswith(BUILT_IN) and group not in GROUPS


def known_kind(value: object) -> ScaleTarget | None:
    """Return the row of an object's kind; None: a kind that is not known, or of another API group."""
    row, api_version = BY_KIND.get(str(at(value, "kind"))), at(value, "apiVersion")
    is_foreign = row is not None and isinstance(api_version, str) and api_group(api_version) != row.group
    return None if is_foreign else row


def impossible(row: ScaleTarget, value: object) -> str:
    """Return why an object cannot be scaled by its replicas, and what is allowed; "": it can."""
    for condition in row.conditions:
        if at(value, *condition.place) in condition.values:
            return condition.words
    roles = at(value, *row.roles) if row.roles else None
    if not isinstance(roles, list) or (len(roles) == 1 and at(roles[0], "replicas") in (None, 1)):
        return ""
    place = dotted(row.roles)
    return f"{place} has several engines, which have no speed in common; allowed: one role with 1 replica"


def items(value: object, place: Place) -> list[Loc]:
    """Return the places that a place with "*" stands for."""
    if EACH not in place:
        return [place]
    index = place.index(EACH)
    found = at(value, *place[:index])
    return [
        (*place[:index], number, *rest)
        for number in range(len(found) if isinstance(found, list) else 0)
        for rest in items(at(found, number), place[index + 1 :])
    ]


def mapping(value: object) -> dict[str, object]:
    """Return the value if it is a mapping, else {}."""
    return value if isinstance(value, dict) else {}


def _annotations(document: Document, ours: Mapping[str, object], book: PolicyBook) -> Iterator[Finding]:
    overrides: list[tuple[str, str]] = []
    keys: dict[str, str] = {}
    policy = book.policies[book.default]
    for key, value in ours.items():
        loc, name = ("metadata", "annotations", key), key.removeprefix(PREFIX)
        path = override_path(name)
        if not path and name not in ANNOTATIONS:
            yield document.finding(loc, *unknown("unknown annotation", names(), name))
        elif not isinstance(value, str):
            yield document.finding(loc, "not text, which Kubernetes requires", "the value in quotes")
        elif path in keys:
            line = document.line_of(("metadata", "annotations", keys[path]))
            yield document.finding(loc, f"overrides {path}, as {keys[path]} does in line {line}", "one of the two")
        elif path:
            keys[path] = key
            try:
                override_value(path, value)
            except OverrideError as error:
                yield document.finding(loc, error.problem, error.allowed)
            else:
                overrides.append((path, value))
        else:
            try:
                read(name, value)
            except ValueError as error:
                yield document.finding(loc, str(error), ANNOTATIONS[name].allowed)
                continue
            if name == "policy" and value and value not in book.policies:
                yield document.finding(loc, *unknown("no such policy", book.policies, value, ""))
            if name == "policy":
                policy = book.policies.get(value, policy)
            if name == WINDOWS:
                keys[PREWARM] = key
                overrides.append((PREWARM, value))
    yield from _overrides(document, policy, tuple(overrides), keys, book)


def _overrides(
    document: Document,
    policy: Policy,
    overrides: tuple[tuple[str, str], ...],
    keys: Mapping[str, str],
    book: PolicyBook,
) -> Iterator[Finding]:
    """Check the overrides together, against the policy and the limits of the namespace.

    keys: annotations by the path that they override.
    """
    annotations: Loc = ("metadata", "annotations")
    try:
        policy = override(policy, overrides)
    except OverrideError as error:
        loc = (*annotations, keys[error.path]) if error.path in keys else annotations
        yield replace(document.finding(loc, error.problem, error.allowed), value=error.found)
        return
    most = policy.spec.replicas.max
    if PREWARM in keys and any(window.replicas > most for window in policy.spec.prewarm):
        problem = "a window with more replicas is limited by replicas.max"
        yield document.warning((*annotations, keys[PREWARM]), problem, f"at most {most}")
    for excess in find_excess(document, policy, overrides, 0, book):
        place = document.finding((*annotations, keys.get(excess.path, f"{PREFIX}policy")), excess.problem)
        yield replace(place, value=excess.value, allowed=excess.allowed)


def find_excess(
    document: Document, policy: Policy, overrides: tuple[tuple[str, str], ...], least: float, book: PolicyBook
) -> list[Excess]:
    """Return what a manifest claims above the limits of its namespace; [] if it names no namespace.

    least: fewest replicas that a ScaledObject states, 0 for none.
    """
    namespace = at(document.value, "metadata", "namespace")
    return limit(policy, overrides, least, namespace, book)[2] if isinstance(namespace, str) else []


def _node_pool(document: Document, pod: Loc) -> Iterator[Finding]:
    """Say that the present nodes of a node pool may be the limit. Karpenter's NodePools state their own."""
    labels = mapping(at(document.value, *pod, "nodeSelector"))
    for key in NODE_POOL_LABELS:
        if key in labels and key != KARPENTER_LABEL:
            problem = (
                "today's nodes of this pool cap the count, unless cluster-autoscaler's status shows its largest size"
            )
            allowed = f"--node-group-max {key}={labels[key]}:NODES of the daemon, whose /readyz shows each limit"
            yield document.warning((*pod, "nodeSelector", key), problem, allowed)


def _drain(document: Document, pod: Loc) -> Iterator[Finding]:
    """Compare the termination grace period with the drain time."""
    place = (*pod, "terminationGracePeriodSeconds")
    grace = at(document.value, *place)
    try:
        grace_s = GRACE_S if grace is None else float(_GRACE.read(grace))
    except ValueError as error:
        yield document.finding(place, str(error), _GRACE.allowed)
        grace_s = nan
    containers = at(document.value, *pod, "containers")
    for index, container in _engines(containers if isinstance(containers, list) else []):
        hook = at(container, "lifecycle", "preStop")
        drain_s = pre_stop_s(hook) + shutdown_timeout_s(_command(container))  # NaN if unknown, which is not reported
        if drain_s == 0:
            problem = "running requests are cut off when the count shrinks"
            allowed = "--shutdown-timeout N, or a preStop hook that sleeps"
            yield document.warning((*pod, "containers", index), problem, allowed)
        elif grace_s < drain_s + _MARGIN_S:
            problem = f"{grace_s:g} s end before preStop and --shutdown-timeout do"
            yield document.warning(place, problem, f"at least {drain_s + _MARGIN_S:g}")


def _sleeps(ours: Mapping[str, object], book: PolicyBook) -> bool:
    """Return whether the workload may keep replicas asleep."""
    stated = ours.get(f"{PREFIX}{OVERRIDE}sleep.replicas")
    if stated is not None:
        return str(stated).strip() != "0"
    policy = book.policies.get(str(ours.get(f"{PREFIX}policy") or book.default))
    return policy is not None and policy.spec.sleep.replicas > 0


def _sleep(document: Document, pod: Loc) -> Iterator[Finding]:
    """Find what keeps an engine from sleeping, or would let a Service send requests to one that sleeps."""
    containers = at(document.value, *pod, "containers")
    for index, container in _engines(containers if isinstance(containers, list) else []):
        place, command = (*pod, "containers", index), _command(container)
        for option, problem in _SLEEP_OPTIONS.items():
            if option not in command:
                yield document.warning(place, problem, option)
        variables = at(container, "env")
        names = {at(each, "name"): at(each, "value") for each in variables} if isinstance(variables, list) else {}
        if str(names.get(_DEV_MODE)) != "1" and not at(container, "envFrom"):
            yield document.warning(place, "its replicas cannot sleep: no sleep endpoints", f"{_DEV_MODE}=1")
        if "is_sleeping" not in str(at(container, "readinessProbe")):
            problem = "its replicas stay awake: the readiness probe does not see whether the engine sleeps"
            yield document.warning((*place, "readinessProbe"), problem, "a probe that asks /is_sleeping")


def _engines(containers: list[object]) -> list[tuple[int, object]]:
    """Return the containers that run vLLM, with their index: by command, else by image."""
    numbered = list(enumerate(containers))
    return [item for item in numbered if runs_vllm(_command(item[1]))] or [
        item for item in numbered if at(item[1], "command") is None and is_vllm_image(str(at(item[1], "image")))
    ]


def _command(container: object) -> str:
    parts = (at(container, "command"), at(container, "args"))
    return " ".join(join_words(part) for part in parts if isinstance(part, list))
