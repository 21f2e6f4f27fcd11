"""The weights of a pod that is being created, and whether its engine would load them from the folder of its node."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.adapters.kubernetes.api.pod_objects import Container, PodObject
from autoscaler.adapters.kubernetes.pods.command_line import CommandFacts, read_command_line
from autoscaler.adapters.kubernetes.pods.model_source import stated_source
from autoscaler.adapters.kubernetes.pods.served_name import changes_offline, is_offline, takes_options
from autoscaler.adapters.kubernetes.pods.template import engine_container, read_model_source
from autoscaler.catalog.weights import LOADS_OTHERS, OFFLINE_ENGINES
from autoscaler.config.annotations import WEIGHTS
from autoscaler.config.drain import is_vllm_image
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.weights.source import KEY_CHARS, ModelSource
from autoscaler.config.weights.steering import MOUNT_PATH, PodWeights

MAX_NAME = 80  # characters of a model's name in the name of a folder
_POD = msgspec.json.Decoder(PodObject)


def read_pod_weights(text: bytes) -> PodWeights | None:
    """Read a pod as JSON; None: its weights are not known. Raises MsgspecError for what is no pod."""
    pod = decode(_POD, text)
    annotations = _annotations(pod.metadata.annotations)
    source = read_model_source(pod.spec, annotations)
    if source is None:
        return None
    engine = engine_container(pod.spec)
    if engine is None or engine not in (pod.spec.containers or ()):
        return PodWeights(source, "")
    facts = read_command_line(engine)
    finds = _finds(source, stated_source(pod.spec, facts), facts) if facts.loads else WEIGHTS in annotations
    if not _is_known(engine, facts) or not finds or _loads_others(engine):
        return PodWeights(source, "")
    compiled = "" if facts.engine == "sglang" else _compiled(source, engine)
    if source.scheme != "hf" or is_offline(engine) or not changes_offline(engine, facts):
        return PodWeights(source, engine.name, compiled)
    return PodWeights(source, engine.name if takes_options(engine, facts) else "", compiled, facts.loads)


def _compiled(source: ModelSource, engine: Container) -> str:
    """Return a name that is readable, and unique by what decides what vLLM compiles but for the node's GPUs."""
    devices = engine.resources.limits if engine.resources else None
    parts = (str(source), engine.image, engine.command, engine.args, bytes(engine.env).decode(), devices)
    digest = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:KEY_CHARS]
    return f"{source.folder.rpartition('/')[2][:MAX_NAME]}-{digest}"


def _annotations(text: msgspec.Raw) -> dict[str, str]:
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any] | None) or {}
    except UNREADABLE:
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _is_known(engine: Container, facts: CommandFacts) -> bool:
    return facts.engine in OFFLINE_ENGINES or (not facts.engine and is_vllm_image(engine.image))


def _finds(source: ModelSource, stated: ModelSource | None, facts: CommandFacts) -> bool:
    """Return whether the engine loads this source from the folder: by its name in a hub, or by its path.

    A command line that names no model, as that of a worker of a group, is believed to load what its annotation states.
    """
    if facts.loads.startswith(f"{MOUNT_PATH}/"):
        return True
    if source.scheme != "hf" or stated is None or facts.loads != source.location:
        return False
    return facts.revision in ("", source.revision)


def _loads_others(engine: Container) -> bool:
    """Return whether a command line may name further repositories, which an engine cannot fetch offline."""
    return any(LOADS_OTHERS.search(word) for word in (*(engine.command or ()), *(engine.args or ())))
