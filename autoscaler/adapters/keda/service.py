"""The external scaler: the meaning of each call. Deadlines and counts are in `middleware`, the port in `server`.

A request names a ScaledObject. The ScaledObject in the cluster names the workload, and must agree with the request.
Every call is answered from memory.

GetMetricSpec is never refused. KEDA calls it first; after an error it writes the HPA without our metric, does not count
the error towards the fallback, and reports no reason. The following calls report what is wrong.

The codes are INVALID_ARGUMENT for invalid metadata, NOT_FOUND for an unknown ScaledObject, and UNAVAILABLE if there is
no answer. KEDA handles them alike: it keeps the replicas, and counts the error towards the fallback. Code and text are
for people who read its events.
Source: KEDA 2.20 pkg/scalers/external_scaler.go, pkg/scaling/scale_handler.go.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from math import ceil
from typing import Any, Literal, NamedTuple, NoReturn

import grpc

from autoscaler.adapters.keda.answers import Answers, CountAnswer, HandingOver, NoAnswer
from autoscaler.adapters.keda.metric_value import DEFAULT_TOLERANCE, METRIC_NAME, TARGET, Tolerance
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerServicer
from autoscaler.config.check import trigger
from autoscaler.config.findings import shown
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import ScaledObjectFields, ScaledObjects, Unavailable

RESEND_S = 10.0  # a stream repeats `true` until its workload has a replica
MAX_VALIDATED = 20_000

Context = grpc.aio.ServicerContext[Any, Any]
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CODE = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "missing": grpc.StatusCode.NOT_FOUND,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
}


class RefusedCall(Exception):
    """The call gets a status instead of an answer."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Validated(NamedTuple):
    """A valid request, so that its repetition need not be validated again."""

    scaled_object: ScaledObjectFields
    metadata: dict[str, str]
    book: PolicyBook
    tolerance: Tolerance


class SpecService(ExternalScalerServicer):
    """The two calls that are answered for every request."""

    def __init__(self) -> None:
        spec = pb.MetricSpec(metricName=METRIC_NAME, targetSize=TARGET, targetSizeFloat=float(TARGET))
        self._specs = pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        """Return one metric with target 1 for every request: KEDA counts errors only if the HPA has our metric."""
        return self._specs

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """Send the specs once. They never change, and KEDA ends the stream together with its ScaledObject."""
        yield self._specs
        await asyncio.Event().wait()


class KedaService(SpecService):
    """The five calls. They raise Refused, which `middleware.Middleware` turns into a status."""

    def __init__(
        self,
        answers: Answers,
        scaled_objects: ScaledObjects,
        policies: Callable[[], PolicyBook],
        resend_s: float = RESEND_S,
    ) -> None:
        """policies: returns the present policies, which may be replaced at any time."""
        self._answers = answers
        self._scaled_objects = scaled_objects
        self._policies = policies
        self._resend_s = resend_s
        super().__init__()
        self._validated: dict[tuple[str, str], _Validated] = {}

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        """Return whether the workload must stay above zero.

        Between two leaders a workload with replicas must. KEDA could take an error for an idle workload: if the HPA's
        query fails at the same time, KEDA closes its scaler, and the poll ends without error and without activity.
        """
        target = self._validate(request).scaled_object.target
        try:
            return pb.IsActiveResponse(result=self._answers.answer(target).active)
        except HandingOver as error:
            if error.has_replicas:
                return pb.IsActiveResponse(result=True)
            _refuse("unavailable", str(error))
        except NoAnswer as error:
            _refuse("unavailable", str(error))

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        """Return one value in both fields: KEDA reads the integer if the float is not above zero.

        Between two leaders return none: the HPA then keeps its count, and KEDA counts no failure.
        """
        key = (request.scaledObjectRef.namespace, request.scaledObjectRef.name)
        try:
            validated = self._validate(request.scaledObjectRef)
            if request.metricName != METRIC_NAME:
                _refuse("invalid", f"metricName: {shown(request.metricName)}; allowed: {METRIC_NAME}")
        except RefusedCall as error:
            self._note_refusal(key, error)
            raise
        self._answers.refusals.clear(key)
        try:
            return _response(self._answers.publish(validated.scaled_object.target, validated.tolerance).value)
        except HandingOver:
            return pb.GetMetricsResponse()
        except NoAnswer as error:
            _refuse("unavailable", str(error))

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Context) -> AsyncIterator[pb.IsActiveResponse]:
        """Send the present state, then each change in its tick, and repeat `true` while there is no replica.

        KEDA writes a status to the API server for every `true`, so a running workload gets it once. While there is no
        answer the stream is silent but stays open, because KEDA would wait up to a minute before it opens another one.
        A follower ends the stream with OK, after which KEDA waits 2 s. With a second trigger `false` is not sent: KEDA
        before 2.18 then scaled to zero, even if the other trigger was active.
        """
        scaled_object = self._validate(request).scaled_object
        target = scaled_object.target
        changed = asyncio.Event()
        sent: bool | None = None
        with self._answers.watching(target, changed.set):
            while self._answers.leading:
                changed.clear()
                answer = self._find_answer(target)
                if answer is not None and (answer.active != sent or (answer.active and answer.current == 0)):
                    sent = answer.active
                    if sent or scaled_object.is_only_trigger:
                        yield pb.IsActiveResponse(result=sent)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._resend_s):
                        await changed.wait()
                scaled_object = self._validate_again(request, target)

    def _note_refusal(self, key: tuple[str, str], refused: RefusedCall) -> None:
        """Note a refusal for `/readyz` and Events, unless this process is the cause or the name is invalid.

        The problems of a ScaledObject in the cluster are reported elsewhere.
        """
        if refused.code is grpc.StatusCode.UNAVAILABLE or not all(map(_NAME.fullmatch, key)):
            return
        found = self._scaled_objects.scaled_object(*key)
        if found is None or not found.problem:
            self._answers.refusals.add(key, found.target if found else None, str(refused))

    def _find_answer(self, target: WorkloadRef) -> CountAnswer | None:
        try:
            return self._answers.answer(target)
        except NoAnswer:
            return None

    def _validate_again(self, request: pb.ScaledObjectRef, target: WorkloadRef) -> ScaledObjectFields:
        """Raise Refused if the ScaledObject of an open stream is gone, or has another target now."""
        scaled_object = self._validate(request).scaled_object
        now = scaled_object.target
        if now != target:
            _refuse("missing", f"ScaledObject {request.namespace}/{request.name} now names {now.kind} {now}")
        return scaled_object

    def _validate(self, request: pb.ScaledObjectRef) -> _Validated:
        """Return the ScaledObject that a request names. Raises Refused if the request is invalid."""
        key = (request.namespace, request.name)
        try:
            found = self._scaled_objects.scaled_object(*key)
        except Unavailable as error:
            _refuse("unavailable", str(error))
        metadata, book = request.scalerMetadata, self._policies()
        before = self._validated.get(key)
        if before and before.scaled_object is found and before.book is book and before.metadata == dict(metadata):
            return before

        for field, text in zip(("namespace", "name"), key, strict=True):
            if not _NAME.fullmatch(text):
                _refuse("invalid", f"{field}: {shown(text)}; allowed: a Kubernetes name")
        if found is None:
            _refuse("missing", f"ScaledObject {key[0]}/{key[1]}: none with a trigger of this scaler is known")
        if problem := _problem(found, metadata, book):
            _refuse("invalid", f"ScaledObject {key[0]}/{key[1]}: {problem}")
        tolerance = Tolerance(
            DEFAULT_TOLERANCE if found.tolerance_up is None else found.tolerance_up,
            DEFAULT_TOLERANCE if found.tolerance_down is None else found.tolerance_down,
        )
        if len(self._validated) >= MAX_VALIDATED:
            self._validated.clear()
        validated = self._validated[key] = _Validated(found, dict(metadata), book, tolerance)
        return validated


def _problem(found: ScaledObjectFields, metadata: Mapping[str, str], book: PolicyBook) -> str:
    """Return what is wrong with a ScaledObject or with the metadata of a request for it; "": nothing."""
    wrong = [
        f"metadata {key}: {problem}"
        for key, problem in trigger.problems(metadata, book).items()
        if f"metadata.{key}: " not in found.problem
    ]
    if found.problem or wrong:
        return "; ".join(filter(None, (found.problem, *wrong)))
    stated = dict(found.metadata)
    for key in sorted({*stated, *metadata} - trigger.KEDA_KEYS):
        if stated.get(key) != metadata.get(key):
            found_text, allowed = (shown(values[key]) if key in values else "absent" for values in (metadata, stated))
            return f"metadata {key}: {found_text}; allowed: {allowed}, as in the cluster"
    return ""


@lru_cache(maxsize=4096)
def _response(value: float) -> pb.GetMetricsResponse:
    metric = pb.MetricValue(metricName=METRIC_NAME, metricValue=ceil(value), metricValueFloat=value)
    return pb.GetMetricsResponse(metricValues=[metric])


def _refuse(reason: Literal["invalid", "missing", "unavailable"], text: str) -> NoReturn:
    raise RefusedCall(_CODE[reason], text)
