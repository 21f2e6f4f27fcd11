"""Requests drawn from a table of clients: counts, bursts, lengths, and refused tables."""

from pathlib import Path

import numpy as np
import pytest

from autoscaler.lab.replay.inputs.client_table import draw, is_client_table, load
from autoscaler.lab.replay.inputs.trace_file import TraceError

HEADER = "t_s,client,requests,cv,dist,shape,active_frac\n"
LENGTHS = "t_s,client,field,mean,q0.01,q0.5,q0.99\n0,1,input_tokens,100,10,100,190\n0,1,output_tokens,20,2,20,38\n"
STEADY = "".join(f"{600 * window},1,600,1,G,1,1\n{600 * window},2,300,0.8,W,1.2,1\n" for window in range(6))


def written(folder: Path, rows: str, lengths: str = LENGTHS) -> Path:
    table = folder / "day_clients.csv"
    table.write_text(HEADER + rows)
    (folder / "day_tokens.csv").write_text(lengths)
    return table


def test_each_client_sends_its_requests_at_any_scale(tmp_path: Path) -> None:
    table = load(written(tmp_path, STEADY))
    assert (table.name, table.window_s, table.duration_s) == ("day", 600.0, 3600.0)
    for scale in (0.3, 1.0, 2.5):
        trace = draw(table, scale, seed=1)
        assert len(trace.arrival_s) == pytest.approx(5400 * scale, rel=0.06)
        assert np.all(np.diff(trace.arrival_s) >= 0) and trace.arrival_s[-1] < trace.duration_s == 3600.0
        per_window = np.bincount((trace.arrival_s // 600).astype(int), minlength=6)
        assert per_window == pytest.approx(np.full(6, 900 * scale), rel=0.2)
    again = draw(table, 2.5, seed=1)
    assert np.array_equal(again.arrival_s, trace.arrival_s)
    assert not np.array_equal(draw(table, 2.5, seed=2).arrival_s[:100], trace.arrival_s[:100])


def test_more_clients_do_not_burst_together(tmp_path: Path) -> None:
    """A client that sends in a twentieth of each window bursts; thirty of them fill the window."""
    rows = "".join(f"{1200 * window},1,600,1,G,1,0.05\n{1200 * window + 600},2,1,1,G,1,1\n" for window in range(6))
    table = load(written(tmp_path, rows))
    one, many = (draw(table, scale, seed=1) for scale in (1.0, 30.0))
    peak, peak_of_many = (np.bincount((trace.arrival_s // 30).astype(int)).max() for trace in (one, many))
    assert peak > 400
    assert peak_of_many < 0.4 * 30 * peak


def test_lengths_follow_quantiles_and_others_stand_in(tmp_path: Path) -> None:
    trace = draw(load(written(tmp_path, STEADY)), 1.0, seed=1)
    assert np.quantile(trace.prompt_tokens, [0.01, 0.5, 0.99]) == pytest.approx([10, 100, 190], abs=6)
    assert np.quantile(trace.output_tokens, [0.01, 0.5, 0.99]) == pytest.approx([2, 20, 38], abs=2)


def test_interval_begins_at_zero(tmp_path: Path) -> None:
    trace = draw(load(written(tmp_path, STEADY)), 1.0, 1, 1500.0, 2100.0)
    assert trace.duration_s == 600.0
    assert len(trace.arrival_s) == pytest.approx(900, rel=0.15)
    assert trace.arrival_s[0] >= 0 and trace.arrival_s[-1] < 600
    with pytest.raises(ValueError, match="must be an interval within"):
        draw(load(written(tmp_path, STEADY)), 1.0, 1, 3600.0)


def test_only_the_header_makes_a_table(tmp_path: Path) -> None:
    assert is_client_table(written(tmp_path, STEADY))
    assert not is_client_table(tmp_path / "day_tokens.csv")
    assert not is_client_table(tmp_path)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,1,600,1,G,1,1\n", "1 windows; needed: two or more"),
        ("0,1,many,1,G,1,1\n", "line 2: could not convert string to float: 'many'"),
        ("0,1,600,1,G,nan,1\n", "line 2: t_s, requests or shape is out of range"),
        ("0,1,600,1,G,1,0\n", "line 2: active_frac is 0; allowed: above 0, at most 1"),
        ("0,1,1e99,1,G,1,1\n", "line 2: t_s, requests or shape is out of range"),
        ("0,1\n", "line 2: "),
    ],
)
def test_invalid_table_is_refused_with_its_line(tmp_path: Path, rows: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        load(written(tmp_path, rows))


def test_table_without_lengths_beside_it_is_refused(tmp_path: Path) -> None:
    table = written(tmp_path, STEADY)
    (tmp_path / "day_tokens.csv").unlink()
    with pytest.raises(TraceError, match=r"no table of lengths beside it; needed: day_tokens\.csv"):
        load(table)


def test_too_many_requests_are_refused_before_they_are_drawn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are more than 50,000,000, the limit"):
        draw(load(written(tmp_path, STEADY)), 1e5, seed=1)
