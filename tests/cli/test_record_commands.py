"""`explain` and `replay` answer from a record."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.file import RecordFile
from autoscaler.adapters.record.recorder import RecordWriter
from autoscaler.adapters.record.stream import Encoder
from autoscaler.adapters.record.tick_values import Decided
from autoscaler.app.record import PolicyWatch
from autoscaler.cli.main import main
from autoscaler.config.policy.parse import load
from tests.adapters.record.test_record import write
from tests.adapters.record.ticks import START_S, records

pytestmark = pytest.mark.slow

POLICY = """
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {{name: ours}}
spec: {{replicas: {{max: {}}}}}
"""
AT = "2026-06-01T08:10:00Z"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "record", records(60))
    return tmp_path / "record"


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(word) for word in words])
    return result.exit_code, result.output


def test_explain_says_who_changed_a_count_and_what_held_then(folder):
    code, output = run("explain", "ns/w0", "--record", folder, "--at", AT)
    changes = [each for tick in records(41) for each in tick.outcomes if each.change.ref.name == "w0"]
    assert code == 0
    assert changes[-1].change.reason in output
    assert f"at {AT}: " in output and "recommender " in output
    assert "not kept" not in output


@pytest.mark.parametrize("command", [["explain", "ns/w0"], ["replay"]])
def test_a_moment_without_ticks_is_told(folder, command):
    code, output = run(*command, "--record", folder, "--at", "2026-06-01T23:00:00+02:00")
    assert code == 0
    if command[0] == "explain":  # changes before the last tick are told
        assert "applied" in output
    assert "no tick can be read between 2026-06-01T08:14:45Z and 2026-06-01T21:00:00Z: this is the last one" in output


def test_replay_computes_a_tick_again_and_says_that_it_is_the_same(folder):
    code, output = run("replay", "--record", folder, "--at", AT, "--workload", "ns/w1")
    assert code == 0
    assert "computed again from 41 ticks" in output and "ns/w1, policy batch" in output and "ns/w0" not in output
    assert output.rstrip().endswith("the same counts and stages, bit for bit, as recorded")


def test_replay_says_which_stage_differs_when_another_program_decided(folder):
    """The first block is written again as if another version had asked for one replica more of w0."""
    file = RecordFile.open(folders.files(folder)[0], write=True)
    values = []
    for number, tick in enumerate(records(4)):
        stages = tick.decision.stages.copy()
        stages[3:, 0] += number == 2
        numbers = Decided.of(tick.input, tick.decision, tick.input.fleet.workload_id, tick.wall_s)
        values.append(Decided(**{**vars(numbers), "stages": stages}).as_value())
    file.connection.execute("UPDATE blocks SET decided = ? WHERE first = 1", (Encoder().encode(values),))
    file.close()
    code, output = run("replay", "--record", folder, "--at", "2026-06-01T08:00:30Z")
    assert code == 1
    assert "differs from what was recorded: stage tolerance gives" in output and "for 1 workload: ns/w0" in output


class HandClock(SystemClock):
    def wall_s(self) -> float:
        return START_S


async def test_explain_names_policies_changed_while_nothing_ran(tmp_path):
    """A rollout brings its policy with a new process. So does an annotation that names another one."""
    folder, both = tmp_path / "record", [records(8)[:4], records(8)[4:]]
    both[1] = [replace(tick, policies=("realtime", "batch")) for tick in both[1]]
    for ticks, most in zip(both, (20, 2), strict=True):
        policy = tmp_path / "policy.yaml"
        policy.write_text(POLICY.format(most))
        async with RecordWriter(folder, 100, 7) as writer:
            PolicyWatch(writer, HandClock(), load((policy,)))
            for tick in ticks:
                writer.record(tick)
    code, output = run("explain", "ns/w0", "--record", folder, "--at", AT)
    assert code == 0
    assert "2026-06-01T08:00:00Z  policy ours changed:\n  -  max: 20\n  +  max: 2\n" in output
    assert output.count("policy ours changed") == 1
    assert "2026-06-01T08:01:00Z  its policy is now realtime; before: interactive\n" in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "ns/w0", "--at", AT], "--record DIR and --at TIME go together"),
        (["replay", "--record", "{folder}", "--workload", "ns/w0"], "--record DIR and --at TIME go together"),
        (["replay", "--record", "{folder}", "--at", AT, "--profile", "x"], "--profile has no effect with --at"),
        (["explain", "ns/w9", "--record", "{folder}", "--at", AT], "ns/w9 is not in the record at"),
        (["explain", "ns/w0", "--record", "{folder}", "--at", "2020-01-01T00:00:00Z"], "before the first tick of"),
        (["explain", "ns/w0", "--record", "{folder}/none", "--at", AT], "No such file or directory"),
        (
            ["report", "--record", "{folder}", "--prometheus", "http://x"],
            "give either --prometheus URL or --record",
        ),
    ],
)
def test_a_wrong_question_is_one_line_and_code_2(folder, words, said):
    code, output = run(*(word.replace("{folder}", str(folder)) for word in words))
    assert code == 2
    assert said in output
