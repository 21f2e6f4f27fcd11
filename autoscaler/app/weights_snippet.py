"""`weights snippet`: the part of a manifest with which pods prefer nodes that hold a model, and start from it."""

from __future__ import annotations

import yaml

from autoscaler.app.process import StartError
from autoscaler.config.annotations import WEIGHTS
from autoscaler.config.weights.source import InvalidSourceError, parse
from autoscaler.config.weights.steering import MOUNT_PATH, template_patch


def snippet(source: str, container: str, host_path: str, image: str) -> int:
    """Print a patch for a Deployment or StatefulSet. Return the exit code."""
    try:
        parsed = parse(source)
    except InvalidSourceError as error:
        raise StartError(str(error)) from error
    if parsed.scheme != "hf":
        print(f"# The engine loads a path: vllm serve {MOUNT_PATH}/{parsed.folder}")
    else:
        print("# Offline vLLM reports a path as model_name unless its command line states --served-model-name.")
    print("# Merge it into the manifest, or: kubectl patch deployment NAME --patch-file FILE")
    template = {"metadata": {"annotations": {WEIGHTS: str(parsed)}}}
    template |= template_patch(parsed, container, host_path, image)
    print(yaml.safe_dump({"spec": {"template": template}}, sort_keys=False, width=200), end="")
    return 0
