"""Read from its writer what a replica count means: a wish, or a count that a deployment carried along.

The API server names the field manager of a count, how it wrote (update or apply), and through which subresource. A zero
through the scale subresource has no name, nor has a count that was raised from there; writes through it have no time.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER


class Writer(NamedTuple):
    """The field manager of a count, as managedFields state it."""

    manager: str = ""  # "": the API server does not know
    operation: str = ""  # Update or Apply
    subresource: str = ""  # "scale", or "": the whole object was written

    @property
    def is_installation(self) -> bool:
        """Whether it is an installation of the daemon."""
        return self.manager.startswith(f"{FIELD_MANAGER}/")

    @property
    def wrote_scale(self) -> bool:
        """Whether it wrote the count alone."""
        return self.subresource == "scale"

    @property
    def applied_manifest(self) -> bool:
        """Whether it applied a manifest on the server, which removes the count if a later manifest has none."""
        return self.operation == "Apply" and not self.wrote_scale


NOBODY = Writer()
UNNAMED = Writer(subresource="scale")
"""The writer of a count without an owner while other fields have one: a zero through `scale`, or a default."""


class Meaning(Enum):
    """The meaning of a foreign count. The value words the owner of such a count."""

    PERSON = "a manual change by {}"
    CONTROLLER = "the controller {}"
    MANIFEST = "a new count in the manifest of {}"
    CARRIED = "the deployment tool {}"  # it applied a manifest, and the count in it is no wish


PEOPLE = ("kubectl-edit", "kubectl-patch", "kubectl-scale", "kubectl-argo-rollouts", "argocd-server", "dashboard")
"""Programs by which people set a count, though they may write the whole object. Those that write the scale alone need
no row here."""

TOOLS = (
    *("helm", "argocd", "kustomize-controller", "flux", "fleet", "kapp", "werf", "kluctl"),
    *("kubectl-client-side-apply", "kubectl-replace", "kubectl-create", "terraform", "hashicorp", "pulumi", "velero"),
)
"""How names of tools begin, in lower case, that write counts from manifests, charts or backups."""

CONTROLLERS = ("controller", "operator", "autoscaler", "downscaler", "keda")
"""Parts of the names of programs that decide about counts."""


def read_meaning(
    writer: Writer, replicas: int, *, redeployed: bool, declared: int | None, default: int | None
) -> Meaning:
    """Return what a count means that somebody else has set.

    redeployed: the pod template was changed by the same write. declared: the count of the manifest, as last seen; None:
    unknown. default: the count that came back if a manifest has no count any more; None: no manifest had one.
    """
    name = writer.manager.lower()
    if not name:
        # After a zero through the scale subresource the API server names nobody, until the whole object is written.
        return Meaning.CARRIED if default and replicas == default else Meaning.PERSON
    if name in PEOPLE:
        return Meaning.PERSON
    is_tool = name.startswith(TOOLS) or writer.applied_manifest
    if is_tool or (redeployed and not writer.wrote_scale):
        changes_manifest = declared != replicas and (declared is not None or not replicas)
        is_wish = changes_manifest and (not redeployed or (not replicas and declared is not None))
        return Meaning.MANIFEST if is_wish else Meaning.CARRIED
    if name == "manager" or any(part in name for part in CONTROLLERS):
        return Meaning.CONTROLLER
    return Meaning.PERSON
