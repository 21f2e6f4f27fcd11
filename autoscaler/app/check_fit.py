"""`check --fit`: whether the models of workloads fit on the devices that their pods request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.template import Facts, read_template
from autoscaler.adapters.kubernetes.workloads.annotations import read_annotations
from autoscaler.adapters.model_files import in_directory, on_hub
from autoscaler.app.check_names import pod_specs
from autoscaler.catalog import node_labels
from autoscaler.catalog.devices import is_mig
from autoscaler.catalog.engines import DEFAULT_ENGINE
from autoscaler.config.annotations import PREFIX
from autoscaler.config.check.engine_memory import STATED, ModelFiles, devices_of, memory_of, needs_of, parallel_size
from autoscaler.config.check.manifests import at, known_kind, mapping
from autoscaler.config.findings import Finding, shown
from autoscaler.config.model_memory import FitVerdict, Range, judge
from autoscaler.config.policy.compile import stated_weights_gb
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.yaml import Document
from autoscaler.core.model.fleet import Workload, WorkloadRef


class FitCheck:
    """Checks manifests of workloads. Each model is looked up once."""

    def __init__(self, models: Path | None, hub: str) -> None:
        """models: a directory with models. hub: URL; "": no hub is asked."""
        self._models = models
        self._hub = hub
        self._found: dict[str, ModelFiles] = {}

    def __call__(self, document: Document, book: PolicyBook) -> Iterator[Finding]:
        """Yield an error for a template that cannot hold its model, and a warning where this is not known."""
        row = known_kind(document.value)
        for loc, spec in pod_specs(document):
            facts = read_template(spec)
            engine = mapping(at(document.value, "metadata", "annotations")).get(f"{PREFIX}engine")
            facts = facts._replace(engine=str(engine or facts.engine))
            stated_gb = _stated_gb(document, book)
            if facts.gpus == 0 or not (facts.loads or facts.memory or stated_gb):
                continue
            verdict, words = self._judge(facts, spec, stated_gb)
            if verdict is FitVerdict.FITS and row is not None and row.unit == "pod" and _asks_for_more(facts):
                verdict, words = (
                    FitVerdict.UNKNOWN,
                    f"its parallel sizes need more than the {facts.gpus:g} GPUs of a pod",
                )
            if verdict is FitVerdict.DOES_NOT_FIT:
                yield document.finding((*loc, "containers"), f"the model does not fit: {words}")
            elif verdict is FitVerdict.UNKNOWN:
                yield document.warning((*loc, "containers"), f"it is not certain that the model fits: {words}")

    def _judge(self, facts: Facts, spec: PodSpec, stated_gb: float) -> tuple[FitVerdict, str]:
        options = dict(facts.memory)
        product = _product(facts, spec)
        tensor = parallel_size(options)
        if is_mig(facts.resource, product) and tensor > 1:
            return FitVerdict.DOES_NOT_FIT, f"--tensor-parallel-size {tensor}, but slices of a GPU cannot work together"
        files = self._files(facts.loads, stated_gb)
        load = needs_of(options, files, facts.gpus, is_vllm=facts.engine in ("", DEFAULT_ENGINE))
        fit = judge(load, memory_of(facts.resource, product))
        known_at = f" ({files.source})" if files.source else ""
        return fit.verdict, f"{fit.sentence}{known_at}" + (f"; {files.problem}" if files.problem else "")

    def _files(self, model: str, stated_gb: float) -> ModelFiles:
        files = self._look_up(model) if model else ModelFiles(problem="no command line names the model")
        if stated_gb:
            return files._replace(weights=Range(stated_gb * 1e9, stated_gb * 1e9), config={}, source=STATED, problem="")
        return files

    def _look_up(self, model: str) -> ModelFiles:
        if model not in self._found:
            found = in_directory(self._models, model) if self._models else None
            if found is None and self._hub and not model.startswith(("/", ".")):
                found = asyncio.run(on_hub(model, self._hub))
            self._found[model] = found or ModelFiles(
                problem=f"the model {shown(model)} is not there; allowed: --models DIR, or the annotation "
                f"{PREFIX}weights-gb"
            )
        return self._found[model]


def _stated_gb(document: Document, book: PolicyBook) -> float:
    """Return the weights that a manifest or its policy states, in 10^9 bytes; 0: none, or they are invalid."""
    written = mapping(at(document.value, "metadata", "annotations"))
    texts = {str(key): value for key, value in written.items() if isinstance(value, str)}
    declared = read_annotations(texts)
    return stated_weights_gb(
        Workload(WorkloadRef("", ""), policy=declared.policy or "", overrides=declared.overrides), book
    )


def _asks_for_more(facts: Facts) -> bool:
    """Return whether the engine spreads the model over more devices than its pod requests."""
    return devices_of(dict(facts.memory)) > facts.gpus


def _product(facts: Facts, spec: PodSpec) -> str:
    """Return the product of the nodes that a template requires; "": any."""
    product = node_labels.product(spec.node_selector or {})
    return product or (facts.product[1] if facts.product else "")
