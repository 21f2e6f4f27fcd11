"""`simulate fit`: a profile from a recording."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from autoscaler.adapters.standard_output import printing
from autoscaler.lab.replay.inputs.fit_profile import LEAST_BUDGET_TOKENS, MOST_BUDGET_TOKENS, Fitted
from autoscaler.lab.replay.inputs.fit_profile import fit as fit_profile
from autoscaler.lab.replay.inputs.recording import read as read_recording
from autoscaler.lab.report import output_files
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import ReplicaSpec


def fit(file: Path, out: Path | None, max_num_seqs: int | None, max_num_batched_tokens: int | None, gpus: float) -> int:
    """Fit a profile to a recording, write it, and print how well it explains the recording."""
    if out is not None:
        output_files.check([out], [file])
    console = Console(stderr=True)
    with ProgressBar(f"reading {file.name}", console) as progress:
        recording = read_recording(file, progress)
    try:
        fitted = fit_profile(recording, max_num_seqs, max_num_batched_tokens)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    text = profile_file.write(ReplicaSpec(fitted.profile, gpus))
    if out is None:
        with printing():
            print(text, end="")
    else:
        output_files.write([(out, text)])
    slots = "" if fitted.slots_known or max_num_seqs else "; max_num_seqs is the largest batch seen, not a known limit"
    budget = "" if max_num_batched_tokens else f"; max_batched_tokens is a guess, {_describe_budget(fitted)}"
    console.print(
        f"{fitted.intervals} busy intervals; the profile explains them within {fitted.error_fraction:.1%} (median)"
        f"{slots}{budget}",
        highlight=False,
        soft_wrap=True,
    )
    for warning in fitted.warnings:
        console.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    return 0


def _describe_budget(fitted: Fitted) -> str:
    """Describe the guessed token budget and its origin."""
    within, budget = fitted.steps_within_tokens, fitted.profile.max_batched_tokens
    defaults = {LEAST_BUDGET_TOKENS: "most", MOST_BUDGET_TOKENS: "the largest"}
    default = f" (vLLM's default on {defaults[budget]} GPUs)" if budget in defaults else ""
    if within is None:
        return f"{budget}{default}: the recording has no buckets of steps"
    if math.isinf(within):
        return f"{budget}{default}: some steps had more tokens than the buckets tell"
    return f"{budget}{default}: no step had more than {within:g} tokens"
