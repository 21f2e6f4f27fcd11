"""Pieces of history from servers that refuse, are slow, or answer in part, and what is kept for the next run."""

import asyncio
import sqlite3
import time

import numpy as np
import pytest
from aiohttp import web

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader
from autoscaler.adapters.prometheus.range.service_queries import ServiceName, ServiceQuery, service_of
from autoscaler.config.settings import PrometheusSettings
from autoscaler.ports import Unavailable
from autoscaler.report.history import FleetHistory, Span
from autoscaler.report.piece_cache import About, Piece, PieceCache
from autoscaler.report.read_history import choose_services, read_history
from tests.harness.process import PATIENCE_S, free_port

START_S, STEP_S = 1_780_000_200.0, 60.0
SPAN = Span(START_S, STEP_S, 100)
PODS, RUNNING = ServiceQuery("pods", "count(x)"), ServiceQuery("running", "sum(y)")


class Server:
    """A stand-in that answers range queries as a test says: real servers do not refuse on demand."""

    def __init__(self, answer):
        """answer: of (query, number of points, number of the request), a status or the values of one series."""
        self.answer, self.requests = answer, []

    async def handle(self, request):
        given = await request.post()
        start, end, step = (float(given[name]) for name in ("start", "end", "step"))
        points = round((end - start) / step) + 1
        self.requests.append((given["query"], points))
        found = self.answer(given["query"], points, len(self.requests))
        if found >= 400:
            return web.json_response({"status": "error", "error": "no"}, status=found)
        values = [[start + number * step, str(found)] for number in range(points)]
        labels = {"namespace": "team", "group": "llama"}
        return web.json_response(
            {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": labels, "values": values}]}}
        )

    def read(self, queries=(PODS, RUNNING), cache=None, span=SPAN, now=lambda: START_S + 10**6):
        """Read a history."""
        kept = cache or PieceCache.none()
        return self.serve(lambda connect: read_history(connect, queries, span, kept, lambda _: None, now, (0.0, 0.0)))

    def ask(self, read):
        """Return what a function reads by one reader."""
        return self.serve(lambda connect: read(connect()))

    def serve(self, read):
        """Return what a function reads, which gets one that makes readers, with the server beside."""

        async def beside():
            app = web.Application()
            app.router.add_route("*", "/api/v1/query_range", self.handle)
            runner = web.AppRunner(app)
            await runner.setup()
            port = free_port()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            settings = PrometheusSettings(url=f"http://127.0.0.1:{port}", timeout_s=PATIENCE_S)

            def reader():
                return RangeReader(settings, Credentials(settings), time.monotonic() + PATIENCE_S)

            try:
                return await asyncio.to_thread(read, reader)
            finally:
                await runner.cleanup()

        return asyncio.run(beside())


def test_piece_is_halved_when_the_server_finds_it_too_large():
    server = Server(lambda query, points, number: 422 if points > 30 else 2)
    found = server.read()
    assert (found.column("pods") == 2).all() and (found.column("running") == 2).all()
    assert not found.problems


@pytest.mark.parametrize("status", [429, 502, 503])
def test_query_is_tried_again_when_trouble_passes(status):
    # The reader itself tries 429, 503 and 504 three times.
    server = Server(lambda query, points, number: status if number in (2, 3) else 1)
    assert (server.read().column("running") == 1).all()


def test_rest_is_used_when_one_column_is_never_answered():
    server = Server(lambda query, points, number: 500 if query == RUNNING.expression else 3)
    found = server.read()
    assert found.services == (ServiceName("", "team", "llama"),)
    assert (found.column("pods") == 3).all()
    assert np.isnan(found.column("running")).all()
    assert "of running could not be read" in found.problems[0]


def test_a_part_that_fails_is_told_and_read_by_the_next_run(tmp_path):
    """Half of a piece that was too large is refused for another reason."""
    file, broken = tmp_path / "cache", [True]

    def answer(query, points, number):
        late = query == RUNNING.expression and broken[0] and number > 5
        return 422 if points > 60 else 500 if late else 3

    server = Server(answer)
    found = server.read(cache=PieceCache(file, "here"))
    assert 0 < np.isnan(found.column("running")).mean() < 1
    assert [each for each in found.problems if each.startswith("a part of") and "of running could" in each]
    broken[0] = False
    again = server.read(cache=PieceCache(file, "here"))
    assert (again.column("running") == 3).all() and not again.problems


def test_what_is_not_asked_for_is_told_when_a_server_stops():
    many = [ServiceQuery(f"column {number}", f"sum(z{number})") for number in range(9)]
    found = Server(lambda query, points, number: 3 if query == PODS.expression else 500).read((PODS, *many))
    assert sum("could not be read" in each for each in found.problems) == 3
    assert any(each.startswith("6 more parts of the history were not asked for") for each in found.problems)


@pytest.mark.parametrize("status", [401, 403])
def test_reading_fails_at_once_when_access_is_refused(status):
    server = Server(lambda query, points, number: status)
    with pytest.raises(RangeQueryFailed, match=str(status)):
        server.read()
    assert len(server.requests) <= 4


def test_next_run_reads_only_what_is_missing(tmp_path):
    file, broken = tmp_path / "cache", [True]
    server = Server(lambda query, points, number: 500 if broken[0] and query == RUNNING.expression else 3)
    server.read(cache=PieceCache(file, "here"))
    broken[0] = False
    before = len(server.requests)
    found = server.read(cache=PieceCache(file, "here"))
    assert {query for query, _ in server.requests[before:]} == {RUNNING.expression}
    assert (found.column("pods") == 3).all() and (found.column("running") == 3).all()
    assert file.stat().st_mode & 0o777 == 0o600


def test_present_is_not_kept_when_samples_may_still_come(tmp_path):
    server, cache = Server(lambda *_: 1), PieceCache(tmp_path / "cache", "here")
    server.read(cache=cache, now=lambda: SPAN.end_s)
    before = len(server.requests)
    server.read(cache=cache, now=lambda: SPAN.end_s)
    assert len(server.requests) == 2 * before


def test_damaged_cache_is_made_again(tmp_path):
    file = tmp_path / "cache"
    PieceCache(file, "here").close()
    file.write_bytes(file.read_bytes()[:100] + b"damaged" * 100)
    cache, piece = PieceCache(file, "here"), Piece(PODS, 0, 2)
    about = About(ServiceName("", "a", "b"), True)
    cache.put(piece, SPAN, {about: np.array([1.0, np.nan])})
    found = cache.get(piece, SPAN)
    assert found is not None and found[about][0] == 1
    assert not cache.problem


@pytest.mark.parametrize("database", [False, True])
def test_a_file_of_somebody_is_left_alone_when_named_as_cache(tmp_path, database):
    file = tmp_path / "thesis"
    if database:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE chapters (text)")
    else:
        file.write_bytes(b"my thesis")
    before = file.read_bytes()
    assert f"{file}: not a cache of vllm-autoscaler" in PieceCache(file, "here").problem
    assert file.read_bytes() == before


def test_cache_of_another_server_is_not_used(tmp_path):
    piece, file = Piece(PODS, 0, 2), tmp_path / "cache"
    PieceCache(file, "one").put(piece, SPAN, {})
    assert PieceCache(file, "two").get(piece, SPAN) is None
    assert PieceCache(file, "one").get(piece, SPAN) == {}


def test_entry_of_other_bytes_is_read_again(tmp_path):
    file = tmp_path / "cache"
    cache, piece = PieceCache(file, "one"), Piece(PODS, 0, 2)
    cache.put(piece, SPAN, {})
    with sqlite3.connect(file) as database:
        database.execute("UPDATE pieces SET answer = ?", (b"\xff\x00",))
    assert cache.get(piece, SPAN) is None


def test_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    cache = PieceCache(tmp_path / "file" / "cache", "one")
    assert "nothing is kept" in cache.problem
    assert cache.get(Piece(PODS, 0, 2), SPAN) is None


def fleet(pods, ordered=None):
    columns = {"pods": np.array(pods, np.float32)} | ({"ordered": np.array(ordered, np.float32)} if ordered else {})
    names = tuple(ServiceName("", "team", f"s{row}") for row in range(len(pods[0])))
    return FleetHistory(Span(0.0, 60.0, len(pods)), names, columns)


def test_hole_of_the_backend_is_not_seen_and_zero_is():
    nan = np.nan
    seen = fleet([[nan, 1], [2, 1], [nan, 1], [nan, nan], [2, 1]]).seen
    assert seen[:, 0].tolist() == [False, True, True, False, True]  # not there yet; zero; nobody answers
    assert seen[:, 1].tolist() == [True, True, True, False, True]


def test_service_without_metrics_is_not_seen_when_its_pods_exist():
    nan = np.nan
    seen = fleet([[2, 1], [nan, 1], [nan, 1]], [[2, nan], [2, nan], [0, nan]]).seen
    assert seen[:, 0].tolist() == [True, False, True]


def test_service_is_not_seen_after_it_was_renamed():
    """Nothing tells of the old name; of one that was scaled to zero kube-state-metrics does."""
    nan = np.nan
    pods, ordered = [[2, nan, 1], [nan, 3, 1], [nan, 3, nan]], [[2, nan, 1], [nan, 3, 1], [nan, 3, 0]]
    history = fleet(pods, ordered)
    assert history.seen.T.tolist() == [[True, False, False], [False, True, True], [True, True, True]]
    assert [each.name for each in history.ended] == ["s0"]


def test_services_of_other_namespaces_are_left_out():
    found = fleet([[1, 2]])
    assert found.only(("team",)).services == found.services
    with pytest.raises(ValueError, match="found: team"):
        found.only(("other",))


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"namespace": "a", "group": "b"}, ("", "a", "b")),
        ({"exported_namespace": "a", "namespace": "monitoring", "group": "b"}, ("", "a", "b")),
        ({"namespace": "a", "group": "b", "cluster": "west"}, ("west", "a", "b")),
        ({"job": "vllm", "group": "targets"}, ("", "", "vllm")),
    ],
)
def test_service_is_named_by_any_labels(labels, name):
    assert service_of(labels) == name


def test_nothing_is_raised_for_an_unreachable_server_but_unavailable():
    settings = PrometheusSettings(url=f"http://127.0.0.1:{free_port()}", timeout_s=1)
    with pytest.raises(Unavailable):
        read_history(
            lambda: RangeReader(settings, Credentials(settings), time.monotonic() + 5),
            (PODS,),
            SPAN,
            PieceCache.none(),
            waits_s=(0.0,),
        )


def test_services_that_a_pod_invents_displace_none_that_are_scraped():
    own = {ServiceName("", "team", "small"): 1.0, ServiceName("", "other", "large"): 9.0}
    invented = {ServiceName("", f"n{number}", "x"): 100.0 for number in range(50)}
    assert choose_services({**invented, **own}, own.keys(), 10)[:2] == [*reversed(own)]
    assert len(choose_services({**invented, **own}, own.keys(), 10)) == 10
    assert choose_services({**invented, **own}, own.keys(), 1) == [ServiceName("", "other", "large")]
    assert len(choose_services(invented, set(), 10)) == 10  # more namespaces than there is room for
