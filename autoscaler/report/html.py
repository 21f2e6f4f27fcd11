"""The frame of a page: one file without outside resources and without a script, to be mailed or printed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from autoscaler.lab.report.format import printable

NUMBER = ' class="number"'

_QUOTED = re.compile(r"`([^`]{1,200})`")


def escape(text: str) -> str:
    """Return a text as HTML that shows it and nothing else: no markup, and no sign that turns what stands after it."""
    return html.escape(printable(text))


def document(title: str, facts: str, verdict: str, sections: Sequence[str]) -> str:
    """Return a page. title, facts, verdict: plain text. sections: HTML, "" is left out."""
    lab, own = (
        files(package).joinpath("page.css").read_text("utf-8") for package in ("autoscaler.lab.report", __package__)
    )
    body = "\n".join(filter(None, sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{lab}{own}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1>
<p class="muted">{escape(facts)}</p></header>
<p class="card verdict">{escape(verdict)}</p>
{body}
</main>
</body>
</html>
"""


def section(title: str, body: str, about: str = "") -> str:
    """Return a card. body: HTML."""
    said = f'<p class="muted">{escape(about)}</p>' if about else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{said}{body}</section>'


def table(head: Sequence[tuple[str, str]], rows: Iterator[str], caption: str = "") -> str:
    """Return a table that scrolls. head: name and explanation of each column. rows: HTML."""
    names = "".join(
        f'<th scope="col"{"" if not name or place == 0 else NUMBER} title="{escape(about)}">{escape(name)}</th>'
        for place, (name, about) in enumerate(head)
    )
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{said}<thead><tr>{names}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def row(name: str, values: Sequence[str], about: str = "") -> str:
    """Return a row of a table. about: a small line below its name."""
    small = f'<div class="small">{escape(about)}</div>' if about else ""
    return f'<tr><th scope="row" class="wrap">{escape(name)}{small}</th>{cells(values)}</tr>'


def cells(values: Sequence[str]) -> str:
    return "".join(f"<td{NUMBER}>{escape(value)}</td>" for value in values)


def notes(lines: Sequence[str]) -> str:
    """Return the last card; "": nothing is to be noted."""
    if not lines:
        return ""
    items = "".join(f"<li>{_sentence(text)}</li>" for text in lines)
    return f'<section class="card"><h2>Notes</h2><ul>{items}</ul></section>'


def _sentence(text: str) -> str:
    """Return a note as HTML: a capital where it begins with a word, and code where it quotes with backticks."""
    begin = text.split(" ", 1)[0]
    whole = escape(text[:1].upper() + text[1:] if begin.isalpha() else text)
    return _QUOTED.sub(r"<code>\1</code>", whole)
