"""Where manifests name the weights of a model: options and variables of engines, annotations and init containers.

Sources: `--help` of vLLM 0.33, SGLang 0.5 and TGI 3.3; the environment of SageMaker's and DJL's images; KServe 0.20.
"""

from __future__ import annotations

import re

DEFAULT_REVISION = "main"  # which the hub's library loads unless another is stated

# Variables from which an image starts a model if its command line names none, the most specific first.
MODEL_VARIABLES = ("HF_MODEL_ID", "MODEL_ID", "MODEL_NAME", "MODEL")
REVISION_VARIABLES = ("HF_MODEL_REVISION", "MODEL_REVISION", "REVISION")

# Annotations of pods by KServe: the source of a model in its LocalModelCache, and that of its storage initializer.
KSERVE_SOURCES = (
    "internal.serving.kserve.io/localmodel-sourceuri",
    "internal.serving.kserve.io/storage-initializer-sourceuri",
)
STORAGE_INITIALIZER = "storage-initializer"  # init container, whose first argument is the source

FETCHES_WEIGHTS = re.compile(
    r"weights?|models?|storage-initializer|downloader|hf-|hugging-?face|s3-?(sync|fetch)|safetensors", re.IGNORECASE
)
"""Names of init containers that fetch weights.

KServe: `storage-initializer`; AIBrix: `init-model`; llm-d and the production stack: `model-...`, `...-downloader`;
`weights` of this project's webhook."""

# Engines that load a model of a hub from HF_HUB_CACHE, and with HF_HUB_OFFLINE ask no hub.
OFFLINE_ENGINES = ("vllm", "sglang")

LOADS_OTHERS = re.compile(
    r"(^|\s)--(config|download.dir|hf.config.path|lora.(modules|paths)|spec(ulative)?.[-\w]+|tokenizer(.path)?)($|[=\s])"
)
"""Options that name further repositories of a hub, a file that may, or another cache."""
