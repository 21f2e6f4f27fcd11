"""Options of `simulate` and `replay`, and how both are run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from autoscaler.cli.options import options, refuse_unused
from autoscaler.cli.param_types import OUT, READABLE_FILE, DurationParam, NumberParam, WholeNumber
from autoscaler.cli.process import run_interruptibly

if TYPE_CHECKING:
    from autoscaler.lab.commands.options import ExperimentOptions

GREEDY = ("--trace", "--against")
YEAR_S = 365 * 86_400


def repeat_greedy(args: list[str]) -> list[str]:
    """Repeat a greedy option before each of its values: `--trace a b` becomes `--trace a --trace b`."""
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
    """A command whose options in `GREEDY` take all values up to the next option: `--trace a.csv b.csv`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_greedy(args))


class GreedyGroup(Greedy, click.Group):
    """A group with the parsing of `Greedy`."""


experiment_options = options(
    click.option(
        "--profile", metavar="NAME|FILE", help="Replica profile: a name, or a file written by `simulate fit`."
    ),
    click.option(
        "--policy", type=READABLE_FILE, help="File with one policy; default: the shipped `interactive` policy."
    ),
    click.option(
        "--against",
        multiple=True,
        metavar="all|NAME|FILE…",
        help="Baselines to compare it with, and files with your own scaling rules.",
    ),
    click.option(
        "--tuned", is_flag=True, help="Also run each baseline at its best setting in hindsight, and show frontiers."
    ),
    click.option(
        "--learn",
        type=DurationParam(10 * YEAR_S),
        help="Learn from this much of the beginning; figures count from then on, "
        "and each baseline also runs as tuned on that part.",
    ),
    click.option("--planned", is_flag=True, help="Also find a schedule with the whole trace known in advance."),
    click.option(
        "--cold-start", type=DurationParam(), default="60s", show_default=True, help="Mean cold start of a replica."
    ),
    click.option(
        "--cold-start-uncached",
        type=DurationParam(),
        help="Mean of the first cold start on a node; default: every node has image and weights.",
    ),
    click.option(
        "--weights-on",
        type=NumberParam(0, 1),
        help="Share of nodes that hold the weights, 0 to 1; every start on another node fetches them. "
        "Default: a node keeps what its first replica fetched.",
    ),
    click.option(
        "--request-nodes",
        is_flag=True,
        help="Nodes are requested before pre-warm windows and rises of the load of a day or a week ago, as the "
        "daemon's --request-nodes does.",
    ),
    click.option(
        "--fetch-weights",
        is_flag=True,
        help="Nodes fetch weights by the daemon's plan, and keep them, as with its --weights and agents.",
    ),
    click.option(
        "--node-idle",
        type=DurationParam(YEAR_S),
        help="An autoscaler of nodes removes a node that was empty for this long; default: nodes stay.",
    ),
    click.option(
        "--cold-start-spread",
        type=NumberParam(0, 1),
        default=0.1,
        show_default=True,
        help="How much cold starts differ: sigma of their logarithm; 0: not at all.",
    ),
    click.option(
        "--crash-every",
        type=DurationParam(YEAR_S),
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
        "--patience", type=DurationParam(), help="Clients still waiting after this time leave; default: nobody leaves."
    ),
    click.option(
        "--drain",
        type=DurationParam(3600, least_s=0),
        default="30s",
        show_default=True,
        help="Time a leaving replica may take to finish what it runs; 0s: it aborts all, as vLLM does by default.",
    ),
    click.option(
        "--scrape-every",
        type=DurationParam(120, least_s=1),
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
        "--usd-per-gpu-hour",
        type=NumberParam(0, 10_000),
        help="Price of a GPU; default: the list price of the profile's GPU.",
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


def run_experiment(given: dict[str, Any], work: Callable[[ExperimentOptions], int], gpus: float | None = None) -> None:
    """Check the values of `experiment_options` and run `work` with them."""
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
    if uncached is None:
        ahead = ("weights_on", "request_nodes", "fetch_weights", "node_idle")
        refuse_unused(given, ahead, "without --cold-start-uncached: every node is up, with image and weights")
    run_simulations(lambda: work(_make_options(given, gpus)))


def _make_options(given: dict[str, Any], gpus: float | None) -> ExperimentOptions:
    from autoscaler.config.settings import KubeSettings
    from autoscaler.lab.commands.options import ExperimentOptions

    return ExperimentOptions(
        profile=given["profile"],
        policies=(given["policy"],) if given["policy"] else (),
        against=given["against"],
        tuned=given["tuned"],
        offline_plan=given["planned"],
        cold_start_s=given["cold_start"],
        cold_start_uncached_s=math.nan if given["cold_start_uncached"] is None else given["cold_start_uncached"],
        weights_on=math.nan if given["weights_on"] is None else given["weights_on"],
        requests_nodes=given["request_nodes"],
        fetches_weights=given["fetch_weights"],
        node_idle_s=given["node_idle"] or math.inf,
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
        usd_per_gpu_hour=math.nan if given["usd_per_gpu_hour"] is None else given["usd_per_gpu_hour"],
        json=given["json"],
        html=given["html"],
        ray=given["ray"],
        jobs=given["jobs"],
        kube=KubeSettings(context=given["context"]) if given.get("cluster") else None,
    )


def run_simulations(work: Callable[[], int]) -> None:
    """Run `work`, which needs the simulator, and exit."""

    def checked() -> int:
        try:
            import numba  # noqa: F401
        except ImportError:
            raise click.UsageError(
                "simulations need numba, which is not installed: pip install 'vllm-autoscaler[sim]'"
            ) from None
        return work()

    run_interruptibly(checked)
