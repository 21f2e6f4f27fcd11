"""The name under which vLLM serves and reports its model, kept where HF_HUB_OFFLINE would change it.

With HF_HUB_OFFLINE vLLM replaces the model by the path of its snapshot, and reports that path as `model_name` unless
--served-model-name is stated. Source: vLLM 0.10 to 0.33, `EngineArgs.__post_init__` and `get_served_model_name`.
"""

from __future__ import annotations

from autoscaler.adapters.kubernetes.api.pod_objects import Container
from autoscaler.adapters.kubernetes.pods.command_line import (
    ARGUMENTS_LIMIT,
    CommandFacts,
    expanded_words,
    stated_variables,
    states_model,
)
from autoscaler.config.drain import is_vllm_image

OPTION = "--served-model-name"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # the hub's library reads both
SHORTEST = len("--se")  # argparse takes any beginning of an option
SHELLS = ("sh", "bash", "dash", "ash", "zsh")
TRUE = ("1", "on", "yes", "true")


def changes_offline(engine: Container, facts: CommandFacts) -> bool:
    """Return whether an engine with HF_HUB_OFFLINE reports another name than without it."""
    is_vllm = facts.engine == "vllm" or (not facts.engine and is_vllm_image(engine.image))
    is_name = bool(facts.loads) and not facts.loads.startswith(("/", ".")) and "://" not in facts.loads
    return is_vllm and is_name and not any(map(_is_name_option, expanded_words(engine)))


def is_offline(engine: Container) -> bool:
    """Return whether the variables of a container keep it from asking a hub."""
    known = stated_variables(engine)
    return any(known.get(name, "").lower() in TRUE for name in OFFLINE)


def takes_options(engine: Container, facts: CommandFacts) -> bool:
    """Return whether an option at the end of a command line reaches vLLM: no shell and no unknown program runs it."""
    words = expanded_words(engine)
    if not words or len(words) >= ARGUMENTS_LIMIT or not states_model(engine) or "--" in words:
        return False
    if any(word.rpartition("/")[2] in SHELLS for word in words):
        return False
    before = ("", *words)
    hidden = any(word.startswith("$(") and not last.startswith("-") for last, word in zip(before, words, strict=False))
    return not hidden and (facts.engine == "vllm" or not engine.command)


def _is_name_option(word: str) -> bool:
    """Return whether a word is the option or a beginning of it, or a script that mentions it."""
    text = word.replace("_", "-")
    name = text.partition("=")[0]
    return (len(name) >= SHORTEST and OPTION.startswith(name)) or OPTION in text
