"""The external scaler: what each call means. How calls are carried, bounded and counted is in `guard` and `server`.

A request names a ScaledObject; the one in the cluster says which workload that is, and must agree with the request.
Every call is answered from memory. GetMetricSpec is never refused: KEDA asks it first, and after an error there it
writes the HPA without our metric, does not count towards the fallback, and tells no tenant the reason. What is wrong is
told by the calls that follow. Codes: INVALID_ARGUMENT for what a tenant wrote, NOT_FOUND for a ScaledObject that is not
there, UNAVAILABLE while there is nothing to tell. KEDA treats all of them alike: it leaves replicas as they are and
counts towards the ScaledObject's fallback; the code and the text are for the people who read its events.
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

from autoscaler.adapters.keda.answers import Answer, Answers, NoAnswer
from autoscaler.adapters.keda.metric_value import DEFAULT_TOLERANCE, METRIC_NAME, TARGET, Tolerance
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerServicer
from autoscaler.config.check import trigger
from autoscaler.config.findings import shown
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import ScaledObject, ScaledObjects, Unavailable

RESEND_S = 10.0  # an open stream says again that its workload is to wake, until it does
MAX_ADMITTED = 20_000

Context = grpc.aio.ServicerContext[Any, Any]
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CODE = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "missing": grpc.StatusCode.NOT_FOUND,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
}


class Refused(Exception):
    """The call gets a status instead of an answer."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Admitted(NamedTuple):
    """A request that was found to be right, so that its repetition need not be looked at again."""

    scaled_object: ScaledObject
    metadata: dict[str, str]
    book: PolicyBook
    tolerance: Tolerance


class KedaService(ExternalScalerServicer):
    """The five calls. Raises Refused; `guard.Guard` turns it into a status."""

    def __init__(
        self,
        answers: Answers,
        scaled_objects: ScaledObjects,
        policies: Callable[[], PolicyBook],
        resend_s: float = RESEND_S,
    ) -> None:
        """policies: gives the policies in force, which may be replaced at any time."""
        self._answers = answers
        self._scaled_objects = scaled_objects
        self._policies = policies
        self._resend_s = resend_s
        self._admitted: dict[tuple[str, str], _Admitted] = {}
        spec = pb.MetricSpec(metricName=METRIC_NAME, targetSize=TARGET, targetSizeFloat=float(TARGET))
        self._specs = pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        """Whether the workload is to be kept above zero."""
        target = self._admit(request).scaled_object.target
        try:
            return pb.IsActiveResponse(result=self._answers.answer(target).active)
        except NoAnswer as error:
            _refuse("unavailable", str(error))

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        """One metric with target 1, whatever is asked: the HPA must hold our metric before a refusal can count."""
        return self._specs

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        """Exactly one value, in both fields: KEDA reads the integer when the float is not above zero."""
        key = (request.scaledObjectRef.namespace, request.scaledObjectRef.name)
        try:
            admitted = self._admit(request.scaledObjectRef)
            if request.metricName != METRIC_NAME:
                _refuse("invalid", f"metricName: {shown(request.metricName)}; allowed: {METRIC_NAME}")
        except Refused as error:
            self._remember(key, error)
            raise
        self._answers.refusals.admit(key)
        try:
            return _response(self._answers.publish(admitted.scaled_object.target, admitted.tolerance).value)
        except NoAnswer as error:
            _refuse("unavailable", str(error))

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Context) -> AsyncIterator[pb.IsActiveResponse]:
        """The state now, then each change within the tick that brings it, and `true` again while there is no replica.

        KEDA writes a status to the API server for every `true`, so of one that is awake it hears once. While there is
        nothing trusted to tell the stream is silent, not broken: KEDA would wait up to a minute before it opens
        another, and the first word that counts is a `true`. A replica that does not lead ends it with OK, after which
        KEDA waits 2 s. Beside another trigger `false` is left to the polls: KEDA before 2.18 took the workload to zero
        for it, whatever the other trigger said.
        """
        scaled_object = self._admit(request).scaled_object
        target = scaled_object.target
        changed = asyncio.Event()
        told: bool | None = None
        with self._answers.watching(target, changed.set):
            while self._answers.leading:
                changed.clear()
                answer = self._known(target)
                if answer is not None and (answer.active != told or (answer.active and answer.current == 0)):
                    told = answer.active
                    if told or scaled_object.is_only_trigger:
                        yield pb.IsActiveResponse(result=told)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._resend_s):
                        await changed.wait()
                scaled_object = self._admit_again(request, target)

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """The current specs, and silence: they never change, and KEDA ends the stream with its ScaledObject."""
        yield self._specs
        await asyncio.Event().wait()

    def _remember(self, key: tuple[str, str], refused: Refused) -> None:
        """Note a refusal for people, unless it tells of this process alone or no object can have such a name.

        A ScaledObject that is wrong as it stands in the cluster is told from there.
        """
        if refused.code is grpc.StatusCode.UNAVAILABLE or not all(map(_NAME.fullmatch, key)):
            return
        found = self._scaled_objects.scaled_object(*key)
        if found is None or not found.problem:
            self._answers.refusals.refuse(key, found.target if found else None, str(refused))

    def _known(self, target: WorkloadRef) -> Answer | None:
        try:
            return self._answers.answer(target)
        except NoAnswer:
            return None

    def _admit_again(self, request: pb.ScaledObjectRef, target: WorkloadRef) -> ScaledObject:
        """Raise Refused when an open stream's ScaledObject is gone, or is no longer what the stream was opened for."""
        scaled_object = self._admit(request).scaled_object
        now = scaled_object.target
        if now != target:
            _refuse("missing", f"ScaledObject {request.namespace}/{request.name} now names {now.kind} {now}")
        return scaled_object

    def _admit(self, request: pb.ScaledObjectRef) -> _Admitted:
        """Return the ScaledObject in the cluster that a request rightly names. Raises Refused otherwise."""
        key = (request.namespace, request.name)
        try:
            found = self._scaled_objects.scaled_object(*key)
        except Unavailable as error:
            _refuse("unavailable", str(error))
        asked, book = request.scalerMetadata, self._policies()
        before = self._admitted.get(key)
        if before and before.scaled_object is found and before.book is book and before.metadata == dict(asked):
            return before

        for field, text in zip(("namespace", "name"), key, strict=True):
            if not _NAME.fullmatch(text):
                _refuse("invalid", f"{field}: {shown(text)}; allowed: a Kubernetes name")
        if found is None:
            _refuse("missing", f"ScaledObject {key[0]}/{key[1]}: none with a trigger of this scaler is known")
        if problem := _problem(found, asked, book):
            _refuse("invalid", f"ScaledObject {key[0]}/{key[1]}: {problem}")
        tolerance = Tolerance(
            DEFAULT_TOLERANCE if found.tolerance_up is None else found.tolerance_up,
            DEFAULT_TOLERANCE if found.tolerance_down is None else found.tolerance_down,
        )
        if len(self._admitted) >= MAX_ADMITTED:
            self._admitted.clear()
        admitted = self._admitted[key] = _Admitted(found, dict(asked), book, tolerance)
        return admitted


def _problem(found: ScaledObject, asked: Mapping[str, str], book: PolicyBook) -> str:
    """Say what is wrong with a ScaledObject or with metadata that claims to be its; "": nothing."""
    wrong = [
        f"metadata {key}: {problem}"
        for key, problem in trigger.problems(asked, book).items()
        if f"metadata.{key}: " not in found.problem
    ]
    if found.problem or wrong:
        return "; ".join(filter(None, (found.problem, *wrong)))
    stated = dict(found.metadata)
    for key in sorted({*stated, *asked} - trigger.KEDA_KEYS):
        if stated.get(key) != asked.get(key):
            said, allowed = (shown(values[key]) if key in values else "absent" for values in (asked, stated))
            return f"metadata {key}: {said}; allowed: {allowed}, as in the cluster"
    return ""


@lru_cache(maxsize=4096)
def _response(value: float) -> pb.GetMetricsResponse:
    metric = pb.MetricValue(metricName=METRIC_NAME, metricValue=ceil(value), metricValueFloat=value)
    return pb.GetMetricsResponse(metricValues=[metric])


def _refuse(reason: Literal["invalid", "missing", "unavailable"], text: str) -> NoReturn:
    raise Refused(_CODE[reason], text)
