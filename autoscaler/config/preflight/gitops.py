"""Checks of tools that apply manifests: whether they write the count back over the autoscaler's."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

from autoscaler.config.annotations import PREFIX
from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.workloads import ModelWorkload
from autoscaler.config.yaml import Loc, read_documents

_TRACKING = "argocd.argoproj.io/tracking-id"
_INSTANCES = ("argocd.argoproj.io/instance", "app.kubernetes.io/instance")  # labels, as argocd-cm says
_KUSTOMIZE, _HELM = "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_RESPECT = "RespectIgnoreDifferences=true"
_PLACEHOLDER, _GLOB = re.compile(r"\{\{[^{}]*+\}\}"), re.compile(r"([*?[])")
_STATES_REPLICAS = re.compile(r'"replicas":\s*\d')


def check_gitops(fleet: Scene) -> Iterator[Result]:
    for workload in fleet.workloads:
        scaled = fleet.is_autoscaled(workload) or f"{PREFIX}policy" in workload.thing.annotations
        if not fleet.is_autoscaled(workload) or workload.replicas is None:
            if scaled and workload.replicas is not None:
                yield from _applied(fleet, workload, plain=False)
            continue
        yield from _applied(fleet, workload, plain=True)


def _applied(fleet: Scene, workload: ModelWorkload, *, plain: bool) -> Iterator[Result]:
    """Check who applies a manifest that states replicas. plain: report it also if no tool is known to."""
    stated = _states_replicas(workload.thing)
    if stated is None:
        yield not_checked(
            workload.thing, workload.replicas_loc, "replicas in Git", "the live object does not tell what Git states"
        )
        return
    if not stated:
        return
    application = _application(fleet, workload.thing)
    if application is not None:
        yield from _argo(fleet, application, workload)
        return
    flux = _flux(fleet, workload)
    yield from flux or ()
    if plain and flux is None and not workload.thing.live and not workload.pod.operator:
        why = f"Whoever applies this file again writes {workload.replicas} over the count that the autoscaler chose."
        yield found(
            "VA1231", workload.thing, workload.replicas_loc, "replicas beside an autoscaler", why, "remove the line"
        )


def _states_replicas(thing: Manifest) -> bool | None:
    """Return whether the manifest of an object states replicas; None: a live object does not tell."""
    if not thing.live:
        return True
    applied = thing.annotations.get(_LAST_APPLIED)
    if applied is not None:
        return bool(_STATES_REPLICAS.search(applied[:65_536]))
    fields = thing.list("metadata", "managedFields")
    if not fields:
        return None
    owners = [
        text_at(each, "manager")
        for each in fields
        if at(each, "fieldsV1", "f:spec", "f:replicas") is not None and text_at(each, "subresource") != "scale"
    ]
    return any("argocd" in owner or "kustomize" in owner or "helm" in owner for owner in owners)


def _application(fleet: Scene, thing: Manifest) -> Manifest | None:
    kinds = ("Application", "ApplicationSet")
    applications = [each for each in fleet.objects.of_kind(*kinds) if "argoproj" in each.text("apiVersion")]
    tracked = thing.annotations.get(_TRACKING, "").partition(":")[0].rpartition("_")[2]
    instance = next((thing.labels[key] for key in _INSTANCES if key in thing.labels), "")
    for each in applications:
        name, base = each.name, _base(each)
        if each.kind == "ApplicationSet":
            name = each.text("spec", "template", "metadata", "name")
        if tracked and _made(name, tracked):
            return each
        namespace = each.text(*base, "destination", "namespace")
        if not tracked and instance and _made(name, instance) and _made(namespace, thing.namespace):
            return each
    marked = tracked or instance or any(f"{domain}/name" in thing.labels for domain in (_KUSTOMIZE, _HELM))
    if marked:
        return None
    return _only_one([(each, each.text(*_base(each), "destination", "namespace")) for each in applications], thing)


def _only_one(appliers: Sequence[tuple[Manifest, str]], thing: Manifest) -> Manifest | None:
    """Return what applies the file of an object that bears no mark: what has its name, or alone has its namespace."""
    here = [] if thing.live else [each for each, namespace in appliers if namespace == thing.namespace]
    named = [each for each in here if each.name == thing.name] or here
    return named[0] if len(named) == 1 else None


def _base(application: Manifest) -> Loc:
    """Return the place of the specification of an Application, or of those that an ApplicationSet makes."""
    return ("spec", "template", "spec") if application.kind == "ApplicationSet" else ("spec",)


def _made(template: str, name: str) -> bool:
    """Return whether a template with {{...}} can make a name."""
    parts = [_GLOB.sub(r"[\1]", part) for part in _PLACEHOLDER.split(template[:300])]
    return fnmatch.fnmatchcase(name[:300], "*".join(parts))


def _argo(fleet: Scene, application: Manifest, workload: ModelWorkload) -> Iterator[Result]:
    base = _base(application)
    automated = application.at(*base, "syncPolicy", "automated")
    ignored = any(_covers(each, workload) for each in application.list(*base, "ignoreDifferences"))
    ignored_everywhere = _ignored_by_settings(fleet, application.namespace, workload)
    options = [str(each) for each in application.list(*base, "syncPolicy", "syncOptions")]
    target = f"{workload.thing.namespace}/{workload.thing.name}"
    if not ignored and not ignored_everywhere:
        heals = at(automated, "selfHeal") is True
        when = "selfHeal undoes each difference within seconds" if heals else "each sync writes it"
        why = (
            f"Git states {workload.replicas} replicas for {target}, and {when}: replicas start and end in turn, each"
            " with a cold start."
        )
        fix = (
            "no replicas in Git; or ignoreDifferences: [{group: apps, kind: Deployment, jsonPointers:"
            f" [/spec/replicas]}}] with syncOptions: [{_RESPECT}]"
        )
        severity = "" if heals else "warning"
        yield found(
            "VA1510",
            application,
            (*base, "ignoreDifferences"),
            "Argo CD writes spec.replicas back",
            why,
            fix,
            severity,
        )
    elif _RESPECT not in options:
        loc: Loc = (*base, "syncPolicy", "syncOptions")
        why = (
            f"Alone it only hides the difference: the next sync of a new image writes {workload.replicas} replicas of"
            f" {target}."
        )
        wanted = ", ".join([*options[:8], _RESPECT])
        yield found("VA1511", application, loc, "each sync still writes spec.replicas", why, f"syncOptions: [{wanted}]")


def _covers(entry: object, workload: ModelWorkload) -> bool:
    """Return whether an entry of ignoreDifferences is about the replicas of a workload."""
    thing = workload.thing
    group = thing.text("apiVersion").rpartition("/")[0]
    for name, own in (("group", group), ("kind", thing.kind), ("name", thing.name), ("namespace", thing.namespace)):
        wanted = text_at(entry, name)
        if wanted and not fnmatch.fnmatchcase(own, wanted[:200]):
            return False
    pointers, paths, managers = (
        at(entry, key) for key in ("jsonPointers", "jqPathExpressions", "managedFieldsManagers")
    )
    pointer = "/" + "/".join(map(str, workload.replicas_loc))
    if isinstance(pointers, list) and pointer in pointers:
        return True
    if isinstance(paths, list) and any(str(each).strip().endswith(pointer.replace("/", ".")) for each in paths):
        return True
    return isinstance(managers, list) and any(
        str(each) in ("kube-controller-manager", "keda", "keda-operator", "vllm-autoscaler") for each in managers
    )


def _ignored_by_settings(fleet: Scene, namespace: str, workload: ModelWorkload) -> bool:
    """Return whether argocd-cm ignores replicas for all applications."""
    group = workload.thing.text("apiVersion").rpartition("/")[0]
    keys = ("all", f"{group}_{workload.thing.kind}")
    for thing in fleet.objects.of_kind("ConfigMap"):
        if thing.name != "argocd-cm" or thing.namespace != namespace:
            continue
        for key in keys:
            text = thing.text("data", f"resource.customizations.ignoreDifferences.{key}")
            for document in read_documents("", text)[0] if text else ():
                if _covers(document.value, workload):
                    return True
    return False


def _flux(fleet: Scene, workload: ModelWorkload) -> list[Result] | None:
    """Return what Flux does to the count, [] if it leaves it; None: it is not known to apply the object."""
    thing = workload.thing
    if thing.annotations.get(f"{_KUSTOMIZE}/reconcile") == "disabled" or thing.annotations.get(f"{_KUSTOMIZE}/ssa") in (
        "Ignore",
        "IfNotPresent",
    ):
        return []
    for domain, kind in ((_KUSTOMIZE, "Kustomization"), (_HELM, "HelmRelease")):
        name, namespace = (thing.labels.get(f"{domain}/{part}") for part in ("name", "namespace"))
        owner = fleet.objects.get(kind, namespace or thing.namespace, name) if name else None
        if kind == "Kustomization" and not any(f"{each}/name" in thing.labels for each in (_KUSTOMIZE, _HELM)):
            kustomizations = [each for each in fleet.objects.of_kind(kind) if _KUSTOMIZE in each.text("apiVersion")]
            owner = _only_one([(each, each.text("spec", "targetNamespace")) for each in kustomizations], thing)
            name = owner.name if owner is not None else None
        if not name:
            continue
        if owner is not None and (_helm_ignores(owner) or _patches_replicas(owner)):
            return []
        heals = kind == "Kustomization" or (
            owner is not None and owner.text("spec", "driftDetection", "mode") == "enabled"
        )
        when = "at each reconciliation" if heals else "at each upgrade"
        why = f"{kind} {name} applies {workload.replicas} replicas {when}, over the count that the autoscaler chose."
        loc = workload.replicas_loc
        severity = "" if heals else "warning"
        return [found("VA1512", thing, loc, "Flux writes spec.replicas back", why, "remove the line", severity)]
    return None


def _patches_replicas(kustomization: Manifest) -> bool:
    """Return whether a patch takes replicas out of what is applied."""
    patches = [text_at(each, "patch")[:65_536] for each in kustomization.list("spec", "patches")[:64]]
    return any("/spec/replicas" in text and "remove" in text for text in patches)


def _helm_ignores(release: Manifest) -> bool:
    for each in release.list("spec", "driftDetection", "ignore"):
        paths = at(each, "paths")
        if isinstance(paths, list) and "/spec/replicas" in paths:
            return True
    return False
