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

from autoscaler.commands.options import (
    EXISTING,
    READABLE_FILE,
    Duration,
    Number,
    WorkloadName,
    options,
    prometheus_options,
    prometheus_settings,
)

if TYPE_CHECKING:
    from autoscaler.trials import Setting

GREEDY = ("--trace", "--against")
YEAR_S = 365 * 86_400
STEP_S = 15.0  # of history
OUT = click.Path(dir_okay=False, path_type=Path)


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
        self.fail(f"a time without zone, found {value[:50]!r}; allowed: 2026-03-01T08:00:00Z, -6h, now", param, ctx)


proof_options = options(
    click.option("--profile", metavar="NAME|FILE", help="Of a replica: a name, or a file of `simulate fit`."),
    click.option("--policy", type=EXISTING, help="File with one policy; default: the shipped `interactive`."),
    click.option("--against", multiple=True, metavar="all|NAME…", help="Baselines to run beside it."),
    click.option("--tuned", is_flag=True, help="Baselines also at their best setting with hindsight, and frontiers."),
    click.option(
        "--learn",
        type=Duration(10 * YEAR_S),
        help="Of the beginning: figures count from then on, and baselines also run as tuned until then.",
    ),
    click.option("--planned", is_flag=True, help="Also a schedule made with the whole trace in hand."),
    click.option("--cold-start", type=Duration(), default="60s", show_default=True, help="Mean, of one replica."),
    click.option(
        "--cold-start-uncached", type=Duration(), help="Mean of the first on a node; default: nodes have all they need."
    ),
    click.option(
        "--cold-start-spread",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        help="Sigma of the logarithm; 0: all alike.",
    ),
    click.option("--crash-every", type=Duration(YEAR_S), help="Mean, of a replica that serves; default: never."),
    click.option(
        "--router",
        type=click.Choice(["least-requests", "round-robin"]),
        default="least-requests",
        show_default=True,
    ),
    click.option("--patience", type=Duration(), help="Clients who still wait by then leave; default: none does."),
    click.option(
        "--start-replicas",
        type=click.IntRange(0, 1000),
        help="Default: the fewest whose first ten minutes meet the goal, or come as near as any.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True),
    click.option("--json", type=OUT, metavar="FILE", help="Write the proof as JSON; docs/simulate.md lists the keys."),
    click.option("--html", type=OUT, metavar="FILE", help="Write table, frontier and timelines as one page."),
    click.option("--ray", is_flag=True, help="Hand the runs to a Ray cluster (extra `ray`)."),
    click.option("--jobs", type=click.IntRange(1, 1024), help="Runs at once; default: one per core."),
)


@click.group(cls=GreedyGroup, invoke_without_command=True)
@click.option(
    "--trace", "traces", type=READABLE_FILE, multiple=True, metavar="FILE…", help="CSV or CSV.gz of requests."
)
@click.option("--scale", type=Number(0, 10_000, min_open=True), default=1.0, show_default=True, help="Copies of it.")
@click.option("--start", type=Duration(10 * YEAR_S), help="Of the part that is run, since the trace's own start.")
@click.option("--end", type=Duration(10 * YEAR_S), help="Of that part; default: the trace's own end.")
@click.option(
    "--gpus",
    type=Number(0, 100_000, min_open=True),
    help="That all models of a trace share; default: as many as each asks for.",
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
    """Replay a trace against simulated replicas: the policy beside baselines and the clairvoyant bound."""
    if context.invoked_subcommand is not None:
        return
    if not traces:
        raise click.UsageError("--trace FILE is missing")
    setting = _setting(given, gpus)
    to_the_end(lambda trials: trials.simulate(setting, traces, scale, (start or 0.0, end or math.inf)))


@simulate.command()
@click.argument("recording", type=READABLE_FILE)
@click.option("--out", type=OUT, metavar="FILE", help="Where the profile goes (*.json); default: standard output.")
@click.option("--max-num-seqs", type=click.IntRange(1, 8191), help="Slots of the engine, where they are known.")
@click.option("--gpus", type=Number(0, 1024, min_open=True), default=1.0, show_default=True, help="Of a replica.")
def fit(recording: Path, out: Path | None, max_num_seqs: int | None, gpus: float) -> None:
    """Fit a profile to recorded metrics: lines of {"t": seconds, "text": the engine's /metrics}, plain or gzip."""
    if out is not None and out.suffix != ".json":
        raise click.UsageError(f"--out {out}: a profile's file ends in .json")
    to_the_end(lambda trials: trials.fit(recording, out, max_num_seqs, gpus))


@click.command(cls=Greedy)
@prometheus_options
@click.option("--ticks", type=READABLE_FILE, metavar="FILE", help="Lines of `dry-run --json` instead of Prometheus.")
@click.option("--workload", type=WorkloadName(), required=True, metavar="NAMESPACE/NAME")
@click.option("--start", type=Moment(), help="2026-03-01T08:00:00Z, or -24h: so long before now.")
@click.option("--end", type=Moment(), default="now", show_default=True)
@click.option("--step", type=Duration(), help="At least the scrape interval; default: 15s.")
@proof_options
def replay(
    ticks: Path | None,
    workload: tuple[str, str],
    start: float | None,
    end: float,
    step: float | None,
    **given: Any,
) -> None:
    """Show what happened to a workload, and what each policy would have done with the same requests."""
    setting = _setting(given)
    prometheus = prometheus_settings(given)
    if (prometheus is None) == (ticks is None):
        raise click.UsageError("give either --prometheus URL or --ticks FILE")
    if start is not None and start >= end:
        raise click.UsageError(f"--start is {_moment(start)}, it must be before --end, {_moment(end)}")
    if ticks is not None:
        if step is not None:
            raise click.UsageError("--step is of --prometheus; of --ticks it is the usual time between two")
        to_the_end(lambda trials: trials.replay_ticks(setting, ticks, workload, (start, end)))
        return
    assert prometheus
    if start is None:
        raise click.UsageError("--start is missing: from when on history is read")
    begin = start
    to_the_end(lambda trials: trials.replay(setting, prometheus, workload, (begin, end), step or STEP_S))


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _setting(given: dict[str, Any], gpus: float | None = None) -> Setting:
    if not given["profile"]:
        raise click.UsageError("--profile NAME is missing: how fast a replica is")
    with_extra()
    from autoscaler.trials import Setting

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
        seed=given["seed"],
        start_replicas=given["start_replicas"],
        gpus=math.inf if gpus is None else gpus,
        learn_s=given["learn"] or 0.0,
        json=given["json"],
        html=given["html"],
        ray=given["ray"],
        jobs=given["jobs"],
    )


def with_extra() -> None:
    """Say what to install where the simulator's compiler is missing."""
    try:
        import numba  # noqa: F401
    except ImportError:
        raise click.UsageError(
            "simulations need numba, which is not installed: pip install 'vllm-autoscaler[sim]'"
        ) from None


def to_the_end(work: Callable[[Any], int]) -> None:
    """Run to the end; expected trouble is one line and code 2, Ctrl-C and SIGTERM end it quietly."""
    with_extra()
    from autoscaler import trials
    from autoscaler.config.findings import PolicyError
    from autoscaler.ports import Unavailable

    ended = 0  # by which signal

    def end(number: int, _frame: object) -> None:
        nonlocal ended
        ended = number
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()  # no other may say what a signal does
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = [signal.signal(number, end) for number in numbers]
    try:
        code = work(trials)
    except (PolicyError, Unavailable, ValueError, RuntimeError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    except (KeyboardInterrupt, SystemError):  # the second is what compiled code makes of the first
        if not ended:
            raise
        code = 128 + ended
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    sys.exit(code)
