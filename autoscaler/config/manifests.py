"""What is wrong with the manifest of a workload, as far as it concerns scaling. Reads documents, writes findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from autoscaler.config.annotations import ANNOTATIONS, PREFIX, names, override_path, read
from autoscaler.config.document import Document, Loc
from autoscaler.config.findings import Finding, one_of
from autoscaler.config.model import Policy
from autoscaler.config.policy import PolicyBook
from autoscaler.config.specs import OverrideError, override, override_value

# Where the pods of each kind are described.
TEMPLATES: Mapping[str, tuple[Loc, ...]] = MappingProxyType(
    {
        "Deployment": (("spec", "template"),),
        "StatefulSet": (("spec", "template"),),
        "LeaderWorkerSet": (
            ("spec", "leaderWorkerTemplate", "leaderTemplate"),
            ("spec", "leaderWorkerTemplate", "workerTemplate"),
        ),
    }
)
_GRACE_S = 30.0  # Kubernetes' default
_MARGIN_S = 10.0  # between the end of the drain and the kill
_SHUTDOWN_TIMEOUT = re.compile(r"--shutdown-timeout[ =](\d{1,6})\b", re.ASCII)
_SLEEP = re.compile(r"\bsleep (\d{1,6})\b", re.ASCII)
_VLLM = re.compile(r"\bvllm\b")


def check_workload(document: Document, book: PolicyBook) -> Iterator[Finding]:
    """Check the annotations of a workload, and, where one names a policy, what would undo its scaling."""
    annotations = at(document.value, "metadata", "annotations")
    ours = {key: value for key, value in mapping(annotations).items() if key.startswith(PREFIX)}
    yield from _annotations(document, ours, book)
    yield from _misplaced(document)
    for template in TEMPLATES[str(at(document.value, "kind"))]:
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
    if at(document.value, "spec", "replicas") is not None:
        problem = "sets the count back at every apply"
        yield document.warning(("spec", "replicas"), problem, "no replicas in the manifest")
    for template in TEMPLATES[str(at(document.value, "kind"))]:
        yield from _drain(document, (*template, "spec"))


def _misplaced(document: Document) -> Iterator[Finding]:
    """Find what was to be one of our annotations, and that nobody reads."""
    domain = PREFIX.removesuffix("/")
    for key in mapping(at(document.value, "metadata", "annotations")):
        prefix, slash, _ = key.partition("/")
        if slash and prefix != domain and get_close_matches(prefix[:100], [domain], cutoff=0.85):
            yield document.finding(("metadata", "annotations", key), "unknown prefix", PREFIX)
    for key in mapping(at(document.value, "metadata", "labels")):
        if key.startswith(PREFIX):
            yield document.warning(("metadata", "labels", key), "no effect as a label", "an annotation")


def at(value: object, *loc: str | int) -> object:
    """Return what stands at a place; None: nothing does."""
    for part in loc:
        if isinstance(value, dict) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def mapping(value: object) -> dict[str, object]:
    """Return a mapping as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def _annotations(document: Document, ours: Mapping[str, object], book: PolicyBook) -> Iterator[Finding]:
    overrides: list[tuple[str, str]] = []
    keys: dict[str, str] = {}
    policy = book.policies[book.default]
    for key, value in ours.items():
        loc, name = ("metadata", "annotations", key), key.removeprefix(PREFIX)
        path = override_path(name)
        if not path and name not in ANNOTATIONS:
            yield document.finding(loc, "unknown annotation", one_of(names(), name))
        elif not isinstance(value, str):
            yield document.finding(loc, "not text, which Kubernetes requires", "the value in quotes")
        elif path:
            keys[path] = keys.get(path, key)
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
                yield document.finding(loc, "no such policy", one_of(book.policies, value))
            if name == "policy":
                policy = book.policies.get(value, policy)
    yield from _overrides(document, policy, tuple(overrides), keys)


def _overrides(
    document: Document, policy: Policy, overrides: tuple[tuple[str, str], ...], keys: Mapping[str, str]
) -> Iterator[Finding]:
    try:
        override(policy, overrides)
    except OverrideError as error:
        loc: Loc = ("metadata", "annotations")
        if error.path in keys:
            loc = (*loc, keys[error.path])
        yield replace(document.finding(loc, error.problem, error.allowed), value=error.found)


def _drain(document: Document, pod: Loc) -> Iterator[Finding]:
    """Compare the time that pods have to end with the time they take. Source: vLLM's --shutdown-timeout, 0.18."""
    grace = at(document.value, *pod, "terminationGracePeriodSeconds")
    grace_s = float(grace) if isinstance(grace, int) and 0 <= grace < 10**9 else _GRACE_S
    containers = at(document.value, *pod, "containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        loc = (*pod, "containers", index)
        command = _words(at(container, "command"), at(container, "args"))
        if not _VLLM.search(f"{command} {at(container, 'image')}"):
            continue
        timeout = _SHUTDOWN_TIMEOUT.search(command)
        before_s = _pre_stop_s(container)
        if timeout is None and before_s == 0:
            problem = "running requests are cut off when the count shrinks"
            yield document.warning(loc, problem, "--shutdown-timeout N, or a preStop hook that sleeps")
            continue
        needed_s = before_s + (float(timeout[1]) if timeout else 0.0) + _MARGIN_S
        if grace_s < needed_s:
            problem = f"{grace_s:g} s end before preStop and --shutdown-timeout do"
            place = (*pod, "terminationGracePeriodSeconds")
            yield document.warning(place, problem, f"at least {needed_s:g}")


def _pre_stop_s(container: object) -> float:
    hook = at(container, "lifecycle", "preStop")
    seconds = at(hook, "sleep", "seconds")
    if isinstance(seconds, int) and 0 <= seconds < 10**9:
        return float(seconds)
    slept = _SLEEP.search(_words(at(hook, "exec", "command")))
    return float(slept[1]) if slept else 0.0


def _words(*lists: object) -> str:
    return " ".join(str(word) for words in lists if isinstance(words, list) for word in words)
