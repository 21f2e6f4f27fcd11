"""What is said of other platforms, against their own CustomResourceDefinitions on a real kube-apiserver."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from autoscaler.catalog.scale_targets import BY_KIND
from tests.config.preflight import test_shapes, test_variants
from tests.config.preflight.scene import LLAMA
from tests.harness.kube_api import ApiError, KubeApi
from tests.harness.process import eventually

TOOLS = Path(__file__).parents[2] / "tools"
PAGES = Path(__file__).parents[2] / "docs" / "how-to" / "platforms"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the definitions have 14 MB
KINDS = ("LLMInferenceService", "InferenceService", "LeaderWorkerSet", "RayService", "ScaledObject", "ScaledJob")
KINDS += ("TriggerAuthentication", "InferencePool", "Application", "ApplicationSet")

ACCEPTED = "accepted"
KNOWN = (
    ".spec.triggers[0].metadata.threshold: expected string",
    ".spec.triggers[0].metadata.ignoreNullValues: expected string",
    ".spec.scaling.keda: field not declared in schema",
)

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(scope="module")
def crds() -> list[dict[str, Any]]:
    done = subprocess.run([TOOLS / "platform_crds.sh"], check=True, capture_output=True, text=True)
    files = sorted(Path(done.stdout.strip()).glob("*.yaml"))
    return [document for file in files for document in yaml.load_all(file.read_text(), Loader=LOADER) if document]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def platforms(tmp_path_factory: pytest.TempPathFactory, crds: list[dict[str, Any]]) -> AsyncIterator[KubeApi]:
    """An API server of its own: other tests expect that the kinds are not there."""
    async with KubeApi.running(tmp_path_factory.mktemp("platforms")) as api:
        for crd in crds:
            await eventually(lambda crd=crd: is_applied(api, crd), crd["metadata"]["name"])
            spec = crd["spec"]
            for version in (each["name"] for each in spec["versions"] if each["served"]):
                path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
                await eventually(lambda path=path: is_served(api, path), f"{path} is served")
        yield api


async def is_applied(api: KubeApi, crd: dict[str, Any]) -> bool:
    """Apply a definition of up to 5 MB, for which a busy server has not always time."""
    try:
        await api.apply(crd)
    except ApiError:
        return False
    return True


async def is_served(api: KubeApi, path: str) -> bool:
    try:
        await api.request("GET", path)
    except ApiError:
        return False
    return True


def test_kinds_are_scaled_where_their_definitions_say(crds: list[dict[str, Any]]):
    """The table of scale targets has the kinds with /scale, and says of others that they have none."""
    compared = set()
    for spec in (crd["spec"] for crd in crds):
        row = BY_KIND.get(spec["names"]["kind"])
        if row is None or row.group != spec["group"]:
            continue
        paths = {
            version["subresources"]["scale"]["specReplicasPath"]
            for version in spec["versions"]
            if version["served"] and "scale" in version.get("subresources", {})
        }
        assert paths == (set() if row.refusal else {f".{'.'.join(row.replicas)}"}), row.kind
        compared.add(row.kind)
    assert compared >= {"LeaderWorkerSet", "RayService", "RayCluster", "LLMInferenceService", "InferenceService"}


def written() -> list[dict[str, Any]]:
    """Return the objects of platforms on the pages and in the tests of the rules."""
    shown = [
        document
        for page in sorted(PAGES.glob("*.md"))
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for document in yaml.safe_load_all(block)
    ]
    tested = [
        document
        for cases in (test_shapes.CASES, test_variants.CASES)
        for _, made in cases.values()
        for document in made
    ]
    tested += [*test_variants.group(2, 4), *test_variants.ray(f"model: {LLAMA}")]
    return shown + tested


async def refusal(api: KubeApi, document: dict[str, Any]) -> str:
    """Return why the server refuses an object; "": it does not serve the version yet, which takes it some seconds."""
    try:
        await api.apply(document, dry_run=True)
    except ApiError as error:
        return "" if "404 page not found" in str(error) else str(error)
    return ACCEPTED


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the required fields that no rule reads."""
    if document["kind"] == "RayService":
        pod = {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray-llm:2.49.0"}]}}
        head = {"headGroupSpec": {"rayStartParams": {}, "template": pod}}
        spec = document["spec"]
        return {**document, "spec": {**spec, "rayClusterConfig": {**head, **spec["rayClusterConfig"]}}}
    source = {"repoURL": "https://git.example/x.git", "path": "deploy"}
    needed: dict[str, Any] = {"project": "default", "source": source, "destination": {"namespace": "web"}}
    spec = document["spec"]
    if document["kind"] == "Application":
        return {**document, "spec": {**needed, **spec}}
    template = {**spec["template"], "spec": {**needed, **spec["template"]["spec"]}}
    return {**document, "spec": {"generators": [{"list": {"elements": []}}], **spec, "template": template}}


async def test_what_is_written_of_platforms_is_accepted(platforms: KubeApi):
    """Refused is what a rule is about, and `spec.scaling.keda`, which KServe has behind its last release."""
    refused: dict[str, str] = {}
    accepted: set[str] = set()
    for document in written():
        kind = document.get("kind", "")
        if kind not in KINDS or "generateName" in document["metadata"]:
            continue
        placed = {**document, "metadata": {**document["metadata"], "namespace": "default"}}
        if kind in ("Application", "ApplicationSet", "RayService"):
            placed = completed(placed)
        error = await eventually(lambda placed=placed: refusal(platforms, placed), f"{kind} is served")
        if error == ACCEPTED:
            accepted.add(kind)
        else:
            refused[yaml.safe_dump(placed)] = error
    others = [(text[:400], error[:400]) for text, error in refused.items() if not any(each in error for each in KNOWN)]
    assert not others, "\n".join("\n".join(each) for each in others)
    assert all(any(each in error for error in refused.values()) for each in KNOWN)
    assert accepted >= {"InferenceService", "LeaderWorkerSet", "RayService", "ApplicationSet", "ScaledJob"}
