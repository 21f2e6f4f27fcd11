"""AdmissionReviews of Kubernetes (admission.k8s.io/v1): every pod is allowed, some with a patch.

A review is untrusted: it may be huge, deep, or no AdmissionReview at all.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from enum import StrEnum

import msgspec

from autoscaler.adapters.webhook.patch import Folder, Operation, UnreadableError, patch_of
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.weights.allowed import EVERY_SOURCE, SourceRules
from autoscaler.config.weights.steering import PodWeights

MAX_POD_BYTES = 256 << 10  # a larger pod stays as it is: etcd takes 1.5 MB, usual pods have 10 KB
_UID = re.compile(rb'"uid"\s*:\s*"([-0-9A-Za-z]{1,64})"')
_UID_WITHIN = 4096  # bytes: the API server writes the request's uid first

Reader = Callable[[bytes], PodWeights | None]


class Result(StrEnum):
    """The result of a review."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"  # no weights are known, or the pod has everything already
    UNREADABLE = "unreadable"


class _ReviewResource(msgspec.Struct, frozen=True):
    group: str = ""
    resource: str = ""


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    resource: _ReviewResource = _ReviewResource()
    sub_resource: str = ""
    namespace: str = ""
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _AdmissionReview(msgspec.Struct, frozen=True):
    request: _Request


_REVIEW = msgspec.json.Decoder(_AdmissionReview)


def answer(text: bytes, read: Reader, folder: Folder | None, rules: SourceRules = EVERY_SOURCE) -> tuple[bytes, Result]:
    """Return the answer to an AdmissionReview, and what became of it. Never raises for what the review holds.

    rules: pods of namespaces that a source does not serve stay as they are.
    """
    try:
        request = _REVIEW.decode(text).request
        operations = _operations(request, read, folder, rules)
    except UNREADABLE:
        found = _UID.search(text[:_UID_WITHIN])
        return _answer(found[1].decode() if found else "", []), Result.UNREADABLE
    return _answer(request.uid, operations), Result.PATCHED if operations else Result.UNCHANGED


def _operations(request: _Request, read: Reader, folder: Folder | None, rules: SourceRules) -> list[Operation]:
    of_pods = request.resource == _ReviewResource("", "pods") and not request.sub_resource
    if not of_pods or request.operation != "CREATE":
        return []
    pod = bytes(request.object)
    if len(pod) > MAX_POD_BYTES:
        raise UnreadableError(f"the pod has {len(pod)} bytes; allowed: {MAX_POD_BYTES}")
    weights = read(pod)
    if weights is None or not rules.serves(weights.source, request.namespace):
        return []
    return patch_of(msgspec.json.decode(pod), request.namespace, weights, folder)


def _answer(uid: str, operations: list[Operation]) -> bytes:
    response: dict[str, object] = {"uid": uid, "allowed": True}
    if operations:
        patch = base64.b64encode(msgspec.json.encode(operations)).decode()
        response |= {"patchType": "JSONPatch", "patch": patch}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
