"""`check`: policies and manifests, before they are applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autoscaler.adapters.keda.check import check_scaled_object, pass_over
from autoscaler.adapters.standard_output import printing
from autoscaler.app.check_fit import FitCheck
from autoscaler.app.check_names import check_served_name
from autoscaler.app.process import StartError
from autoscaler.catalog.findings import ERROR, NOTE
from autoscaler.config.check.files import ManifestChecker
from autoscaler.config.check.files import check as check_files
from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.parse import PolicyBook, read_policies
from autoscaler.config.preflight.facts import QueryFacts
from autoscaler.config.preflight.objects import Manifests, PreflightFinding, read_object
from autoscaler.config.preflight.run import run
from autoscaler.config.price_file import KIND as PRICES
from autoscaler.config.price_file import check_prices
from autoscaler.config.quotas import KIND as QUOTAS
from autoscaler.config.quotas import check_quotas
from autoscaler.config.yaml import Document
from autoscaler.ports import Unwritable

_OWN_WORDS = frozenset({"VA1231", "VA1302", "VA1303", "VA1304", "VA1310", "VA1402", "VA1403"})  # and of `check --fit`


def check(files: Sequence[Path], policies: Sequence[Path], default_policy: str, fit: FitCheck | None = None) -> int:
    """Validate policies and manifests and print the findings. Returns 1 if there is an error."""
    try:
        known = read_policies(policies)
        book = PolicyBook(known.policies, default_policy, known.limits)
        checkers: dict[str, ManifestChecker] = {
            "ScaledObject": check_scaled_object,
            QUOTAS: check_quotas,
            PRICES: check_prices,
        }
        checked = check_files(
            files,
            book,
            checkers,
            of_workloads=(check_served_name, *((fit,) if fit else ())),
            passed_over={"ScaledObject": pass_over},
        )
    except PolicyError as error:
        raise StartError(str(error)) from error
    counted, passed = (
        ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
        for kinds in (checked.documents, checked.skipped)
    )
    alarms = list(_alarms(checked.read, book))
    try:
        with printing():
            for finding in checked.findings:
                print(finding)
            for alarm in alarms:
                file = alarm.object.document.file
                print(f"{file}:{alarm.line}: {alarm.severity}: {alarm.id} {alarm.path}: {alarm.message}: {alarm.why}")
            for reason in checked.passed_over:
                print(f"not checked: {reason}")
            print(f"checked {counted or 'nothing'}" + (f"; not checked: {passed}" if passed else ""))
    except Unwritable as error:
        raise StartError(str(error)) from error
    return int(checked.failed or any(alarm.severity == ERROR for alarm in alarms))


def _alarms(documents: Sequence[Document], book: PolicyBook) -> Iterator[PreflightFinding]:
    """Yield what `preflight` finds in the documents alone, but notes and what `check` says in its own words."""
    things = [thing for document in documents if (thing := read_object(document)) is not None]
    for alarm in run(Manifests.of(things), QueryFacts(server=False), book).findings:
        if alarm.severity != NOTE and alarm.id not in _OWN_WORDS:
            yield alarm
