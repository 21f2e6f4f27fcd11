"""`demand`: the model of demand of all services, from the history in Prometheus alone, and drafts of policies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from rich.console import Console

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.range.latency_queries import latency_queries, read_latencies
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import find_engines
from autoscaler.app.purchase import read_capacity
from autoscaler.app.report import make_report_of_history
from autoscaler.app.report_reading import DEADLINE_S, ReportOptions, reader_of
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.demand.capacity import BuyLimits
from autoscaler.demand.document import to_json
from autoscaler.demand.durations import Latencies
from autoscaler.demand.model import DemandHistory, DemandModel, model_demand
from autoscaler.demand.page import page
from autoscaler.demand.policy_file import policy_names, policy_text
from autoscaler.demand.purchase import plan_purchase
from autoscaler.demand.purchase_document import print_purchase, purchase_document
from autoscaler.demand.table import print_demand
from autoscaler.lab.report import output_files
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.report.history import Span


@dataclass(frozen=True)
class DemandOptions:
    """The options of `demand`."""

    report: ReportOptions
    timezone: str
    drafts: Path | None  # folder for the drafts
    record: Path | None  # whose history of GPUs is read; None: that of Prometheus
    limits: BuyLimits


def demand(options: DemandOptions) -> int:
    """Read the history, compute the model, print it and write its files."""
    json, html = options.report.json, options.report.html
    output_files.check([path for path in (json, html) if path is not None], options.report.policies)
    if options.drafts is not None:
        _check_drafts(options.drafts, options.report.policies)
    if options.record is not None and not options.record.is_dir():
        raise ValueError(f"--record {options.record}: no such folder")
    console = Console(stderr=True)
    made = make_demand(options, console)
    assert options.report.prometheus is not None  # the command line requires it
    span = made.report.load.span
    found = read_capacity(options.report.prometheus, options.record, (span.start_s, span.end_s), console)
    purchase = plan_purchase(made, found[0], options.limits, options.report.prices, found[1])
    output = Console()
    print_demand(made, output)
    print_purchase(purchase, output)
    contents = [] if json is None else [(json, to_json(made, purchase_document(purchase)))]
    contents += [] if html is None else [(html, page(made, purchase))]
    if options.drafts is not None:
        names = policy_names(made.services)
        contents += [
            (options.drafts / f"{names[w]}.yaml", policy_text(made, w, names[w]))
            for w, draft in enumerate(made.drafts)
            if draft.offered
        ]
    output_files.write(contents)
    return 0


def _check_drafts(folder: Path, policies: Sequence[Path]) -> None:
    """Raise ValueError for a folder in which a draft may replace a policy: tenants choose the names of drafts."""
    if not folder.is_dir():
        raise ValueError(f"--drafts {folder}: no such folder")
    for path in policies:
        if (path if path.is_dir() else path.parent).resolve() == folder.resolve():
            raise ValueError(
                f"--drafts {folder}: drafts may replace policies of --policy {path}; allowed: another folder"
            )


def make_demand(options: DemandOptions, console: Console) -> DemandModel:
    """Read the history and compute the model. Raises Unavailable, ValueError, PolicyError."""
    report, history = make_report_of_history(options.report, console)
    past = DemandHistory(history, *read_latencies_of(options.report, history.span, console))
    book = load_policies(options.report.policies, options.report.default_policy)
    with ProgressBar("drafts on the second half", console) as progress:
        return model_demand(report, past, book, ZoneInfo(options.timezone), progress)


def read_latencies_of(options: ReportOptions, span: Span, console: Console) -> tuple[Latencies, tuple[str, ...]]:
    """Read the histograms of a span; also return what could not be read."""
    settings = options.prometheus
    assert settings is not None  # the command line requires it
    span_s = (span.start_s, span.end_s)
    deadline_s = time.monotonic() + DEADLINE_S
    with reader_of(lambda: RangeReader(settings, Credentials(settings), deadline_s)) as reader:
        found = find_engines(reader, all_spellings(settings.metric_prefixes), span_s)
        with ProgressBar("reading histograms", console) as progress:
            return read_latencies(reader, latency_queries(found), span_s, progress)
