"""The commands that try policies before they are trusted: `simulate`, `simulate fit` and `replay`."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autoscaler.cli.options import (
    READABLE_FILE,
    Duration,
    Number,
    WholeNumber,
    WorkloadName,
    options,
    prometheus_options,
    prometheus_settings,
    refuse_unused,
)

if TYPE_CHECKING:
    from autoscaler.lab.commands import Setting

GREEDY = ("--trace", "--against")
YEAR_S = 365 * 86_400
STEP_S = 15.0  # of history


class Out(click.Path):
    """File that is written; neither nothing nor `-` is the name of one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("", "-"):
            allowed = "./- for a file of this name" if value else "a name"
            self.fail(f"not the name of a file, found {value!r}; allowed: {allowed}, /dev/stdout", param, ctx)
        return super().convert(value, param, ctx)


OUT = Out(dir_okay=False, path_type=Path)


def repeated(args: list[str]) -> list[str]:
    """Write the option before each of its words: `--trace a b` as `--trace a --trace b`, `--trace=a b` as well."""
    words: list[str] = []
    option, filled = "", False
    for word in args:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            option, filled = (name if name in GREEDY else ""), bool(equals)
            words.append(word)
        else:
            words += [option, word] if option and filled else [word]
            filled = True
    return words


class Greedy(click.Command):
    """A command whose options `GREEDY` take all words up to the next option: `--trace a.csv b.csv`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeated(args))


class GreedyGroup(Greedy, click.Group):
    """As `Greedy`, with commands of its own."""


class Moment(click.ParamType):  # type: ignore[type-arg]
    """Unix time, written as `2026-03-01T08:00:00Z`, with any offset, or `-6h`: so long before now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from autoscaler.config.values import read_duration

        now = datetime.now(UTC)
        try:
            if value == "now":
                return now.timestamp()
            if value.startswith("-"):
                return (now - timedelta(seconds=read_duration(value[1:]))).timestamp()
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment.astimezone(UTC).timestamp()
        except (ValueError, OverflowError):  # no time, or none of the years 1 to 9999
            self.fail(f"not a time, found {value[:50]!r}; allowed: 2026-03-01T08:00:00Z, -6h, now", param, ctx)
        self.fail(
            f"a time without a time zone, found {value[:50]!r}; allowed: 2026-03-01T08:00:00Z, -6h, now", param, ctx
        )


proof_options = options(
    click.option(
        "--profile", metavar="NAME|FILE", help="Replica profile: a name, or a file written by `simulate fit`."
    ),
    click.option(
        "--policy", type=READABLE_FILE, help="File with one policy; default: the shipped `interactive` policy."
    ),
    click.option("--against", multiple=True, metavar="all|NAME…", help="Baselines to compare it with."),
    click.option(
        "--tuned", is_flag=True, help="Also run each baseline at its best setting in hindsight, and show frontiers."
    ),
    click.option(
        "--learn",
        type=Duration(10 * YEAR_S),
        help="Learn from this much of the beginning; figures count from then on, "
        "and each baseline also runs as tuned on that part.",
    ),
    click.option("--planned", is_flag=True, help="Also find a schedule with the whole trace known in advance."),
    click.option(
        "--cold-start", type=Duration(), default="60s", show_default=True, help="Mean cold start of a replica."
    ),
    click.option(
        "--cold-start-uncached",
        type=Duration(),
        help="Mean of the first cold start on a node; default: every node has image and weights.",
    ),
    click.option(
        "--cold-start-spread",
        type=Number(0, 1),
        default=0.1,
        show_default=True,
        help="How much cold starts differ: sigma of their logarithm; 0: not at all.",
    ),
    click.option(
        "--crash-every",
        type=Duration(YEAR_S),
        help="Mean time between crashes of a serving replica; default: replicas never crash.",
    ),
    click.option(
        "--router",
        type=click.Choice(["least-requests", "round-robin"]),
        default="least-requests",
        show_default=True,
        help="How a request is assigned to a replica.",
    ),
    click.option(
        "--patience", type=Duration(), help="Clients still waiting after this time leave; default: nobody leaves."
    ),
    click.option(
        "--drain",
        type=Duration(3600, least_s=0),
        default="30s",
        show_default=True,
        help="Time a leaving replica may take to finish what it runs; 0s: it aborts all, as vLLM does by default.",
    ),
    click.option(
        "--scrape-every",
        type=Duration(120, least_s=1),
        default="15s",
        show_default=True,
        help="Time between two scrapes: what a policy sees is as old as the last one.",
    ),
    click.option(
        "--start-replicas",
        type=WholeNumber(0, 1000),
        help="Replicas at the start; default: the fewest that meet the goal in the first ten minutes, or come closest.",
    ),
    click.option(
        "--seed",
        type=WholeNumber(min=0),
        default=1,
        show_default=True,
        help="Random seed for everything that is drawn.",
    ),
    click.option(
        "--json", type=OUT, metavar="FILE", help="Write the results as JSON; docs/reference/simulate.md lists the keys."
    ),
    click.option("--html", type=OUT, metavar="FILE", help="Write table, frontier and timelines as one HTML page."),
    click.option("--ray", is_flag=True, help="Run on a Ray cluster (needs the extra `ray`)."),
    click.option("--jobs", type=WholeNumber(1, 1024), help="Number of runs in parallel; default: one per core."),
)


@click.group(cls=GreedyGroup, invoke_without_command=True, short_help="Try a policy on a trace, against baselines.")
@click.option(
    "--trace", "traces", type=READABLE_FILE, multiple=True, metavar="FILE…", help="Requests as CSV or CSV.gz."
)
@click.option(
    "--scale",
    type=Number(0, 10_000, min_open=True),
    default=1.0,
    show_default=True,
    help="Number of copies of the trace to superpose; below 1, the share of requests to keep.",
)
@click.option(
    "--start",
    type=Duration(10 * YEAR_S, least_s=0),
    help="Start of the part to run, counted from the start of the trace.",
)
@click.option(
    "--end",
    type=Duration(10 * YEAR_S),
    help="End of the part to run, counted from the start of the trace; default: the end of the trace.",
)
@click.option(
    "--gpus",
    type=Number(0, 100_000, min_open=True),
    help="GPUs shared by all models of a trace; default: as many as each asks for.",
)
@proof_options
@click.pass_context
def simulate(
    context: click.Context,
    /,
    traces: tuple[Path, ...],
    scale: float,
    start: float | None,
    end: float | None,
    gpus: float | None,
    **given: Any,
) -> None:
    """Replay a trace against simulated replicas and compare a policy with baselines and the clairvoyant bound."""
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name.replace('_', '-')} has no effect before {context.invoked_subcommand}")
        return
    if not traces:
        raise click.UsageError("--trace FILE is missing")
    interval = (start or 0.0, end or math.inf)
    if interval[0] >= interval[1]:
        from autoscaler.config.values import show_duration

        started, ended = map(show_duration, interval)
        raise click.UsageError(f"--start is {started}; it must be before --end, {ended}")
    _prove(given, lambda trials, setting: trials.simulate(setting, traces, scale, interval), gpus)


@simulate.command(short_help="Fit a replica profile to recorded metrics.")
@click.argument("recording", type=READABLE_FILE)
@click.option(
    "--out", type=OUT, metavar="FILE", help="File to write the profile to (*.json); default: standard output."
)
@click.option("--max-num-seqs", type=WholeNumber(1, 8191), help="Slots of the engine, if known.")
@click.option(
    "--max-num-batched-tokens",
    type=WholeNumber(2, 200_000_000),
    help="Token budget of a step, if known; else guessed from the largest step recorded.",
)
@click.option(
    "--gpus", type=Number(0, 1024, min_open=True), default=1.0, show_default=True, help="GPUs of one replica."
)
def fit(
    recording: Path, out: Path | None, max_num_seqs: int | None, max_num_batched_tokens: int | None, gpus: float
) -> None:
    """Fit a profile to recorded metrics: lines of {"t": seconds, "text": the engine's /metrics}, plain or gzipped."""
    if out is not None and out.suffix != ".json" and not out.is_relative_to("/dev"):
        raise click.UsageError(f"--out {out}: the name of a profile's file must end in .json")
    to_the_end(lambda trials: trials.fit(recording, out, max_num_seqs, max_num_batched_tokens, gpus))


@click.command(cls=Greedy, short_help="Try a policy on a workload's own history.")
@prometheus_options
@click.option(
    "--ticks",
    type=READABLE_FILE,
    metavar="FILE",
    help="File with the output of `dry-run --json`, instead of Prometheus.",
)
@click.option(
    "--workload", type=WorkloadName(), required=True, metavar="NAMESPACE/NAME", help="Workload whose history is read."
)
@click.option("--start", type=Moment(), help="Start of the history: 2026-03-01T08:00:00Z, or -24h for 24 hours ago.")
@click.option(
    "--end", type=Moment(), default="now", show_default=True, help="End of the history, written as for --start."
)
@click.option(
    "--step",
    type=Duration(),
    help="Resolution at which Prometheus is read; at least the scrape interval; default: 15s.",
)
@proof_options
def replay(
    ticks: Path | None,
    workload: tuple[str, str],
    start: float | None,
    end: float,
    step: float | None,
    **given: Any,
) -> None:
    """Show what happened to a workload and what the policy and each baseline would have done with the same requests."""
    prometheus = prometheus_settings(given)
    if (prometheus is None) == (ticks is None):
        raise click.UsageError("give either --prometheus URL or --ticks FILE")
    if start is not None and end - start < 1:  # `now` twice lies some microseconds apart
        raise click.UsageError(f"--start is {_moment(start)}; it must be before --end, {_moment(end)}")
    if ticks is not None:
        if step is not None:
            raise click.UsageError(
                "--step applies to --prometheus only; with --ticks the step is the usual interval between ticks"
            )
        _prove(given, lambda trials, setting: trials.replay_ticks(setting, ticks, workload, (start, end)))
        return
    if start is None:
        raise click.UsageError("--start is missing: it says where the history to read begins")
    _prove(given, lambda trials, setting: trials.replay(setting, prometheus, workload, (start, end), step or STEP_S))


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _prove(given: dict[str, Any], work: Callable[[Any, Setting], int], gpus: float | None = None) -> None:
    """Run to the end what takes a setting, that of `proof_options`."""
    if not given["profile"]:
        raise click.UsageError("--profile NAME is missing: it says how fast a replica is")
    if not given["against"]:
        refuse_unused(given, ("tuned",), "without --against NAME")
    if given["ray"]:
        refuse_unused(given, ("jobs",), "with --ray: the cluster says how many runs there are at once")
    cold, uncached = given["cold_start"], given["cold_start_uncached"]
    if uncached is not None and uncached < cold:
        from autoscaler.config.values import show_duration

        fresh, other = map(show_duration, (uncached, cold))
        raise click.UsageError(f"--cold-start-uncached is {fresh}; it must be at least --cold-start, {other}")
    to_the_end(lambda trials: work(trials, _setting(given, gpus)))


def _setting(given: dict[str, Any], gpus: float | None) -> Setting:
    from autoscaler.lab.commands import Setting

    return Setting(
        profile=given["profile"],
        policies=(given["policy"],) if given["policy"] else (),
        against=given["against"],
        tuned=given["tuned"],
        planned=given["planned"],
        cold_start_s=given["cold_start"],
        cold_start_uncached_s=math.nan if given["cold_start_uncached"] is None else given["cold_start_uncached"],
        cold_start_spread=given["cold_start_spread"],
        crash_every_s=given["crash_every"] or math.inf,
        router=given["router"],
        patience_s=given["patience"] or math.inf,
        drain_s=given["drain"],
        scrape_s=given["scrape_every"],
        seed=given["seed"],
        start_replicas=given["start_replicas"],
        gpus=math.inf if gpus is None else gpus,
        learn_s=given["learn"] or 0.0,
        json=given["json"],
        html=given["html"],
        ray=given["ray"],
        jobs=given["jobs"],
    )


def to_the_end(work: Callable[[Any], int]) -> None:
    """Run to the end and exit. Ctrl-C and SIGTERM end it quietly, from the first import on, which takes seconds."""
    ended = 0  # by which signal

    def end(number: int, _frame: object) -> None:
        nonlocal ended
        ended = number
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()  # no other may say what a signal does
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = [signal.signal(number, end) for number in numbers]
    try:
        code = _expecting_trouble(work)
    except (KeyboardInterrupt, SystemError):  # the second is what compiled code makes of the first
        if not ended:
            raise
        code = 128 + ended
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    sys.exit(code)


def _expecting_trouble(work: Callable[[Any], int]) -> int:
    """Return the exit code of `work`, which gets `trials`. Expected trouble is one line and code 2."""
    try:
        import numba  # noqa: F401
    except ImportError:
        raise click.UsageError(
            "simulations need numba, which is not installed: pip install 'vllm-autoscaler[sim]'"
        ) from None
    from autoscaler.config.findings import PolicyError
    from autoscaler.lab import commands as trials
    from autoscaler.ports import Unavailable

    try:
        return work(trials)
    except (PolicyError, Unavailable, ValueError, RuntimeError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return 2
