"""`preflight`: what would hurt, in manifests, a cluster, and the answers of a Prometheus. Changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.listing import list_all
from autoscaler.adapters.prometheus.instant.client import PrometheusClient
from autoscaler.adapters.prometheus.instant.questions import answer_all
from autoscaler.adapters.standard_output import printing
from autoscaler.adapters.turns import in_turns
from autoscaler.app.preflight_output import write
from autoscaler.app.process import StartError
from autoscaler.catalog.findings import SEVERITIES
from autoscaler.config.check.files import MAX_MANIFEST_BYTES, read_manifests
from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.parse import PolicyBook, read_policies
from autoscaler.config.preflight.facts import Answer, QueryFacts, Question
from autoscaler.config.preflight.objects import Manifest, Manifests, NotChecked, PreflightFinding, found, read_object
from autoscaler.config.preflight.run import PreflightOutcome, run
from autoscaler.config.settings import KubeSettings, PrometheusSettings
from autoscaler.config.yaml import Document
from autoscaler.ports import Unwritable

MAX_QUESTIONS = 4000
NOT_ASKED = Answer(error=f"not asked: more than {MAX_QUESTIONS} queries, of which half may be of one namespace")
MAX_ROUNDS = 6  # a question may follow from an answer, but not without end
MAX_ANSWER_BYTES = 24 << 20


@dataclass(frozen=True)
class PreflightOptions:
    """What is checked, and how it is said."""

    files: tuple[Path, ...]
    policies: tuple[Path, ...] = ()
    default_policy: str = "interactive"
    prometheus: PrometheusSettings | None = None
    kube: KubeSettings | None = None  # None: no cluster is read
    namespaces: tuple[str, ...] = ()
    form: str = "text"  # "text", "json", "sarif", "github"
    fail_on: str = "error"  # "never": the exit code does not depend on findings
    deadline_s: float = 50.0  # for all queries together


async def preflight(options: PreflightOptions) -> int:
    """Check, and print what was found. Returns 1 if a finding is at least as severe as `fail_on`."""
    try:
        known = read_policies(options.policies)
        book = PolicyBook(known.policies, options.default_policy, known.limits)
    except PolicyError as error:
        raise StartError(str(error)) from error
    objects, unread, problems = read_files(options.files)
    kinds = frozenset[str]()
    if options.kube is not None:
        listed, refused, kinds = await _cluster(options.kube, options.namespaces, given=not options.files)
        objects += listed
        problems += refused
    outcome = await check(Manifests.of(objects, listed=kinds), book, options.prometheus, options.deadline_s)
    findings = tuple(sorted((*unread, *outcome.findings), key=lambda each: SEVERITIES.index(each.severity)))
    outcome = PreflightOutcome(
        findings, (*problems, *outcome.not_checked), outcome.suppressed, outcome.workloads, outcome.groups
    )
    try:
        with printing():
            write(outcome, options.form)
    except Unwritable as error:
        raise StartError(str(error)) from error
    if options.fail_on == "never":
        return 0
    failing = SEVERITIES[: SEVERITIES.index(options.fail_on) + 1]
    return int(any(each.severity in failing for each in findings))


def read_files(paths: Sequence[Path]) -> tuple[list[Manifest], list[PreflightFinding], list[NotChecked]]:
    """Read the objects of files and folders; what cannot be read is a finding about the file."""
    objects: list[Manifest] = []
    findings: list[PreflightFinding] = []
    passed_over: list[NotChecked] = []
    for path in paths:
        documents, faults = read_manifests(path, MAX_MANIFEST_BYTES)
        for document in documents:
            if (thing := read_object(document)) is not None:
                objects.append(thing)
            elif document.value is not None:
                place = f"{document.file}:{document.line}"
                passed_over.append(NotChecked(place, "", "document", "it has no kind and name of an object"))
        for fault in faults:
            file = Manifest("File", "", fault.file, Document(fault.file, fault.line, None))
            why = f"{fault.key or 'document'}: {fault.problem}" + (
                f"; allowed: {fault.allowed}" if fault.allowed else ""
            )
            findings.append(
                found(
                    "VA1101",
                    file,
                    (),
                    "this document cannot be read, so nothing in it is checked",
                    why,
                    fault.allowed,
                )
            )
    return objects, findings, passed_over


async def check(
    objects: Manifests, book: PolicyBook, prometheus: PrometheusSettings | None, deadline_s: float
) -> PreflightOutcome:
    """Run the checks, ask what they want to know, and run them again until they know it."""
    facts = QueryFacts(prometheus is not None)
    outcome = run(objects, facts, book)
    if prometheus is None:
        return outcome
    clock = SystemClock()
    until_s = asyncio.get_running_loop().time() + deadline_s
    async with PrometheusClient(prometheus, clock, max_answer_bytes=MAX_ANSWER_BYTES) as client:
        for _ in range(MAX_ROUNDS):
            wanted = facts.wanted.keys() - facts.answers.keys()
            if not wanted:
                break
            chosen = next_questions(facts)
            facts.answers |= dict.fromkeys(wanted, NOT_ASKED)
            facts.answers |= await answer_all(client, clock, chosen, until_s)
            outcome = run(objects, facts, book)
    return outcome


def next_questions(facts: QueryFacts, most: int = MAX_QUESTIONS) -> list[Question]:
    """Return what is asked next. Namespaces take turns, and none may ask more than half of all that are asked.

    most: questions in all rounds.
    """
    asked = Counter(by for each, by in facts.wanted.items() if facts.answers.get(each, NOT_ASKED) is not NOT_ASKED)
    chosen = []
    for question in in_turns((each for each in facts.wanted if each not in facts.answers), facts.wanted.__getitem__):
        by = facts.wanted[question]
        if asked.total() < most and (not by or asked[by] < most // 2):
            asked[by] += 1
            chosen.append(question)
    return chosen


async def _cluster(
    settings: KubeSettings, namespaces: Sequence[str], *, given: bool
) -> tuple[list[Manifest], list[NotChecked], frozenset[str]]:
    async with Kube.connect(settings) as kube:
        listed = await list_all(kube, namespaces)
    objects = [read_object(Document("", 0, value), given=given, live=True) for value in listed.objects]
    refused = [
        NotChecked(f"{kind}//", "", "objects of this kind", reason) for kind, reason in sorted(listed.problems.items())
    ]
    return [each for each in objects if each is not None], refused, listed.kinds
