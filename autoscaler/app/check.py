"""`check`: policies and manifests, before they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoscaler.adapters.keda.check import check_scaled_object
from autoscaler.adapters.standard_output import printing
from autoscaler.app.check_fit import FitCheck
from autoscaler.app.check_names import check_served_name
from autoscaler.app.process import StartError
from autoscaler.config.check.files import ManifestChecker
from autoscaler.config.check.files import check as check_files
from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.parse import PolicyBook, read_policies
from autoscaler.config.price_file import KIND as PRICES
from autoscaler.config.price_file import check_prices
from autoscaler.config.quotas import KIND as QUOTAS
from autoscaler.config.quotas import check_quotas
from autoscaler.ports import (
    Unwritable,
)


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
        checked = check_files(files, book, checkers, of_workloads=(check_served_name, *((fit,) if fit else ())))
    except PolicyError as error:
        raise StartError(str(error)) from error
    counted, passed = (
        ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
        for kinds in (checked.documents, checked.skipped)
    )
    try:
        with printing():
            for finding in checked.findings:
                print(finding)
            print(f"checked {counted or 'nothing'}" + (f"; not checked: {passed}" if passed else ""))
    except Unwritable as error:
        raise StartError(str(error)) from error
    return int(checked.failed)
