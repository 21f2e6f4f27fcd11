"""Answers the questions of `config.preflight`: instant queries, label sets of the last days, names of metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus

from autoscaler.adapters.prometheus.decode import parse_labels
from autoscaler.adapters.prometheus.instant.client import IN_FLIGHT, PrometheusClient, QueryFailed
from autoscaler.config.preflight.facts import HISTORY, Answer, Question, Sample
from autoscaler.ports import Clock

MAX_SERIES = 200_000  # of one answer
_HISTORY_S = float(HISTORY.removesuffix("d")) * 86_400
_INVALID = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


async def answer_all(
    client: PrometheusClient, clock: Clock, questions: Iterable[Question], until_s: float
) -> dict[Question, Answer]:
    """Answer questions, at most `IN_FLIGHT` at once. Never raises for what the server does.

    until_s: time of the event loop at which waiting for answers ends.
    """
    turns = asyncio.Semaphore(IN_FLIGHT)

    async def one(question: Question) -> tuple[Question, Answer]:
        async with turns:
            if asyncio.get_running_loop().time() >= until_s:
                return question, Answer(error="not asked: the deadline was over")
            try:
                async with asyncio.timeout_at(until_s):
                    return question, await _answer(client, clock, question)
            except TimeoutError:
                return question, Answer(error="no answer before the deadline")

    return dict(await asyncio.gather(*map(one, questions)))


async def _answer(client: PrometheusClient, clock: Clock, question: Question) -> Answer:
    now_s = clock.wall_s()
    try:
        if question.kind == "names":
            return Answer(names=frozenset(await client.metric_names(now_s - _HISTORY_S, now_s)))
        if question.kind == "series":
            found = await client.series(question.text, now_s - _HISTORY_S, now_s)
            return Answer(tuple(Sample(labels, float("nan")) for labels in found[:MAX_SERIES]))
        vector = (await client.query(question.text, is_ours=False)).vector
    except QueryFailed as error:
        return Answer(error=str(error), refused=error.status in _INVALID and "bad_data" in str(error))
    if vector.partial:
        return Answer(error=f"the answer is partial: {'; '.join(vector.notes)}"[:300])
    if len(vector.labels) > MAX_SERIES:
        return Answer(error=f"more than {MAX_SERIES} series")
    values = vector.values.tolist()
    return Answer(tuple(Sample(parse_labels(raw), value) for raw, value in zip(vector.labels, values, strict=True)))
