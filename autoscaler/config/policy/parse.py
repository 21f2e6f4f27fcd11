"""Reads policies from files, validates them completely, and keeps them by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from autoscaler.config.findings import Finding, PolicyError, one_of, shown, unknown
from autoscaler.config.policy.namespace_limits import LIMITS_KIND, NamespaceLimits
from autoscaler.config.policy.schema import API_VERSION, KIND, Policy, Section, kind_of, section_of
from autoscaler.config.yaml import SUFFIXES, Document, Loc, read_documents, read_text, yaml_files

DEFAULT_POLICY = "interactive"
MAX_FILES = 256
Model = TypeVar("Model", bound=Section)


@dataclass(frozen=True)
class PolicyBook:
    """All policies that apply. It is created and replaced as a whole."""

    policies: Mapping[str, Policy]  # by name
    default: str  # name of the policy for workloads that name none
    limits: NamespaceLimits | None = None  # None: namespaces are not limited

    def wakeup_queries(self) -> dict[str, str]:
        """Return the PromQL queries that wake workloads, by name of the policy."""
        return {name: query for name, policy in self.policies.items() if (query := policy.spec.wake_up.query)}


class Documents(NamedTuple):
    """The documents in files of policies."""

    policies: dict[str, Policy]  # by name
    limits: NamespaceLimits | None


def shipped() -> Path:
    """Return the folder of the policies in the package."""
    return Path(str(files("autoscaler"))) / "policies"


def load(paths: Sequence[Path] = (), default: str = DEFAULT_POLICY) -> PolicyBook:
    """Read policies from files and folders, or the shipped ones if none is given.

    A folder contributes its own *.yaml and *.yml, except hidden files and kustomization.yaml; it may be a mounted
    ConfigMap. A single policy is the default one, whatever its name.
    Raises PolicyError with all findings; then nothing is loaded.
    """
    found = read_policies(paths)
    return assemble(found.policies, default, paths, limits=found.limits)


def assemble(
    policies: Mapping[str, Policy],
    default: str,
    paths: Sequence[Path],
    more: Mapping[str, Policy] = MappingProxyType({}),
    limits: NamespaceLimits | None = None,
) -> PolicyBook:
    """Combine policies and find the default one. Raises PolicyError, which names the paths.

    more: further policies. A single policy in `policies` is the default one despite them.
    """
    every = {**policies, **more}
    if default not in every and len(policies) == 1:
        default = next(iter(policies))
    if default not in every:
        where = ", ".join(map(str, paths))
        problem, allowed = unknown("no such policy", every, default, "")
        raise PolicyError([Finding(where, 0, "--default-policy", problem, shown(default), allowed)])
    return PolicyBook(MappingProxyType(every), default, limits)


def read_policies(paths: Sequence[Path]) -> Documents:
    """Read policies and limits from files and folders. Raises PolicyError as `load` does.

    The shipped policies are read if no file is given, or if the files have nothing but limits.
    """
    paths = paths or (shipped(),)
    findings: list[Finding] = []
    policies: dict[str, Policy] = {}
    limits, limits_origin = None, ""
    origin: dict[str, str] = {}  # "file:line" of each, by name
    for path in yaml_files(paths, policies_in, "policy files in", MAX_FILES, findings):
        text = read_text(path)
        if isinstance(text, Finding):
            findings.append(text)
            continue
        documents, faults = read_documents(str(path), text)
        findings.extend(faults)
        if not documents and not faults:
            findings.append(Finding(str(path), 0, "", "contains no document", allowed=f"documents of kind {KIND}"))
        for document in documents:
            if is_limits(document):
                if limits_origin:
                    problem = f"another document of this kind; the first is in {limits_origin}"
                    findings.append(document.finding(("kind",), problem, "one"))
                limits_origin = limits_origin or f"{path}:{document.line}"
                limits = read_limits(document, findings)
                continue
            policy = read_policy(document, findings)
            if policy is None:
                continue
            if policy.name in policies:
                problem = f"another policy has this name; the first is in {origin[policy.name]}"
                findings.append(document.finding(("metadata", "name"), problem, "each name once"))
                continue
            policies[policy.name] = policy
            origin[policy.name] = f"{path}:{document.line}"
    if findings:
        raise PolicyError(findings)
    if limits is not None and not policies:
        policies = read_policies((shipped(),)).policies
    return Documents(policies, limits)


def policies_in(folder: Path) -> list[Path]:
    """Return a folder's own policy files."""
    return [entry for entry in folder.iterdir() if is_policy_file(entry)]


def is_policy_file(path: Path) -> bool:
    """Return whether an entry of a folder is read. Kubelet's ..data and hidden files are not."""
    return path.suffix in SUFFIXES and not path.name.startswith(".") and path.stem != "kustomization"


def read_policy(document: Document, findings: list[Finding]) -> Policy | None:
    """Parse one document as a policy. On errors add to `findings` and return None."""
    if not isinstance(document.value, dict):
        finding = document.finding((), "not a policy", f"a mapping with apiVersion {API_VERSION}, kind {KIND}")
        findings.append(replace(finding, value=""))  # it may be another file that contains a token
        return None
    return _read(document, Policy, findings)


def is_limits(document: Document) -> bool:
    """Return whether a document states the limits of namespaces."""
    return isinstance(document.value, dict) and document.value.get("kind") == LIMITS_KIND


def read_limits(document: Document, findings: list[Finding]) -> NamespaceLimits | None:
    """Parse one document as limits of namespaces. On errors add to `findings` and return None."""
    return _read(document, NamespaceLimits, findings)


def _read(document: Document, model: type[Model], findings: list[Finding]) -> Model | None:
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        findings.extend(document.finding(*fault) for fault in describe_errors(error, model))
        return None


def load_document(path: Path, model: type[Model], kind: str) -> Model:
    """Read a file of one document. Raises PolicyError with all findings; then nothing is loaded."""
    text = read_text(path)
    if isinstance(text, Finding):
        raise PolicyError([text])
    documents, findings = read_documents(str(path), text)
    if len(documents) != 1 and not findings:
        problem = f"contains {len(documents)} documents"
        findings.append(Finding(str(path), 0, "", problem, allowed=f"one document of kind {kind}"))
    for document in documents:
        findings.extend(check_document(document, model, kind))
    if findings:
        raise PolicyError(findings)
    return model.model_validate(documents[0].value)


def check_document(document: Document, model: type[Section], kind: str) -> Iterator[Finding]:
    """Find what is wrong with a document of a kind."""
    if not isinstance(document.value, dict):
        yield document.finding((), f"not {kind.lower()}", f"a mapping with apiVersion {API_VERSION}, kind {kind}")
        return
    try:
        model.model_validate(document.value)
    except ValidationError as error:
        for place in describe_errors(error, model):
            yield document.finding(*place)


def describe_errors(error: ValidationError, model: type[Section]) -> Iterator[tuple[Loc, str, str]]:
    """Yield place, problem and allowed values for each error of pydantic."""
    for detail in error.errors(include_url=False, include_input=False):
        loc, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
        section, allowed = _about(model, loc)
        if kind == "policy_rule":
            yield (*loc, context["key"]), context["problem"], context["allowed"]
        elif kind == "policy_value":
            yield loc, context["problem"], allowed
        elif kind == "extra_forbidden":
            yield loc, *unknown("unknown key", section.keys(), str(loc[-1]))
        elif kind == "missing":
            yield loc, "missing", allowed
        elif kind == "too_long":
            yield loc, "too many", f"{context['max_length']} at most"
        else:
            yield loc, "of the wrong type", allowed


def _about(model: type[Section], loc: Loc) -> tuple[type[Section], str]:
    """Return the model that contains a place, and the allowed values there."""
    around, inside, allowed = model, model, _mapping(model)
    for part in loc:
        if isinstance(part, int):
            allowed = _mapping(inside)
            continue
        around = inside
        info = around.keys().get(part)
        if info is None:
            return around, ""
        kind, section = kind_of(info), section_of(info)
        if kind is not None:
            allowed = kind.allowed
        if section is not None:
            inside, single = section, info.annotation is section
            allowed = _mapping(inside) if single else f"a list, each {_mapping(inside)}"
    return around, allowed


def _mapping(section: type[Section]) -> str:
    return f"a mapping with keys of {one_of(section.keys())}"
