"""The report of one reading."""

from autoscaler.adapters.scrape.report import MAX_CHARACTERS, MAX_LINES, ReportBuilder


def test_all_failures_are_counted_and_a_few_named() -> None:
    builder = ReportBuilder()
    builder.requests = 100
    for index in range(50):
        builder.fail(f"pod-{index}", "no answer")
    report = builder.build("scrape", 1.5)
    assert (report.source, report.queries, report.failed, report.duration_s) == ("scrape", 100, 50, 1.5)
    assert report.problems[0] == "pod-0: no answer"
    assert report.problems[MAX_LINES:] == (f"and {50 - MAX_LINES} more",)


def test_a_note_is_no_failure() -> None:
    builder = ReportBuilder()
    builder.note("pod", "an odd line")
    assert (builder.build("x", 0.0).failed, builder.build("x", 0.0).problems) == (0, ("pod: an odd line",))


def test_untrusted_text_is_truncated_and_made_printable() -> None:
    builder = ReportBuilder()
    builder.note("pod\n\x1b[31m", "x" * 10_000)
    (line,) = builder.build("x", 0.0).problems
    assert line.startswith("pod??[31m: xxx")
    assert len(line) == MAX_CHARACTERS
