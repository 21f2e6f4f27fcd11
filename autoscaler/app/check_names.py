"""`check`: whether an engine keeps the name of its model in its metrics when it asks no hub."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.command_line import read_command_line
from autoscaler.adapters.kubernetes.pods.served_name import OPTION, changes_offline, is_offline, takes_options
from autoscaler.adapters.kubernetes.pods.template import engine_container
from autoscaler.config.annotations import WEIGHTS
from autoscaler.config.check.manifests import at, items, known_kind, mapping
from autoscaler.config.findings import UNREADABLE, Finding
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.yaml import Document, Loc


def pod_specs(document: Document) -> Iterator[tuple[Loc, PodSpec]]:
    """Yield the places and specs of the pods of a manifest. Those that the API server refuses are left out."""
    row = known_kind(document.value)
    for part in row.pods if row is not None else ():
        for place in items(document.value, part.place):
            loc = place if part.bare else (*place, "spec")
            try:
                yield loc, msgspec.json.decode(msgspec.json.encode(at(document.value, *loc)), type=PodSpec)
            except (*UNREADABLE, TypeError):
                continue


def check_served_name(document: Document, book: PolicyBook) -> Iterator[Finding]:
    """Yield a warning where vLLM reports the path of a snapshot as `model_name`, or the webhook avoids that."""
    for loc, spec in pod_specs(document):
        engine = engine_container(spec)
        if engine is None:
            continue
        facts = read_command_line(engine)
        if not changes_offline(engine, facts):
            continue
        metadata = at(document.value, *loc[:-1], "metadata", "annotations")
        if is_offline(engine):
            text = f"with HF_HUB_OFFLINE vLLM reports the path of a snapshot as model_name; state {OPTION}"
            yield document.warning((*loc, "containers"), text)
        elif WEIGHTS in mapping(metadata) and not takes_options(engine, facts):
            text = f"the webhook cannot add {OPTION} to this command line, so it mounts no weights; state the option"
            yield document.warning((*loc, "containers"), text)
