"""Draw a report as one HTML page that needs nothing else: text, bars, table."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from loadtest.report import Report, line_names, table_line
from loadtest.summary import Summary

# Blue, orange, green and purple of one lightness: told apart by most colour-blind readers too.
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #5b6570; --line: #d5dae0;
  --ground: #fff; --box: #f3f5f8; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a8568a; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ed; --soft: #9aa5b1; --line: #3a424c;
  --ground: #15181c; --box: #1f242a; --c0: #56b4e9; --c1: #e8893a; --c2: #2bc49a; --c3: #d68fbb; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground);
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
.soft { color: var(--soft); font-size: .9rem } .box { background: var(--box);
  border-left: 4px solid var(--c0); padding: .8rem 1rem; border-radius: 4px }
.bad { border-left-color: #d33 } .charts { display: grid; gap: 0 2.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
svg { width: 100%; height: auto; display: block; font: 13px system-ui, sans-serif }
svg text { fill: var(--text) } svg .axis { stroke: var(--line) }
svg .range { stroke: var(--text); stroke-width: 1.5 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .87rem;
  font-variant-numeric: tabular-nums; width: 100% }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  white-space: nowrap } th:first-child, td:first-child { text-align: left }
th { color: var(--soft); font-weight: 600 } i { display: inline-block; width: .8em; height: .8em;
  border-radius: 2px; margin: 0 .35em 0 1em } .f0 { fill: var(--c0); background: var(--c0) }
.f1 { fill: var(--c1); background: var(--c1) } .f2 { fill: var(--c2); background: var(--c2) }
.f3 { fill: var(--c3); background: var(--c3) }
"""

#: Title, what is better, and where a row has the figure.
_CHARTS = [
    ("Requests per second", "longer is better", ("rps",)),
    ("Gateway CPU per request, µs", "shorter is better", ("cpu_us_per_request", "gateway")),
    ("Median latency, ms", "shorter is better", ("latency_ms", "p50")),
    ("99th percentile of latency, ms", "shorter is better", ("latency_ms", "p99")),
]

# Pixels of the drawing, before it is scaled.
_LEFT, _WIDTH, _RIGHT, _BAR, _GAP = 90, 330, 80, 16, 10


def render(report: Report) -> str:
    """Return the page."""
    summaries = report.summaries()
    connections = list(dict.fromkeys(s.connections for s in summaries))
    charts = "".join(
        f"<section><h2>{title} <span class='soft'>({better})</span></h2>"
        f"{_chart(summaries, connections, path, title)}</section>"
        for title, better, path in _CHARTS
    )
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in report.problems())
    trouble = f"<div class='box bad'>A failed run:<ul>{problems}</ul></div>" if problems else ""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Load test: {escape(report.experiment)}</title>
<style>{_STYLE}</style>
<h1>Load test: {escape(report.experiment)}</h1>
<p class="soft">{escape(_circumstances(report))}</p>
{trouble}
<h2>Which to use, and why</h2>
<p class="box">{escape(report.conclusion)}</p>
<p class="soft">{escape(report.shared())} Bars are the medians of the repeats, the thin lines
reach from the least to the greatest.</p>
<p>Connections: {_legend(connections)}</p>
<div class="charts">{charts}</div>
<h2>All medians</h2>
<div class="scroll">{_table(report, summaries)}</div>
<p class="soft">{escape(report.notes())}</p>
<p class="soft">{escape(_checked(report))}</p>
<p class="soft">Commit {escape(report.commit)}. {escape(_versions(report))}</p>
</html>
"""


def _circumstances(report: Report) -> str:
    machine, options = report.machine, report.options
    sleep = f" for {options['task_seconds']:g} s" if options.get("task_seconds") else ""
    return (
        f"Task {options['task']}{sleep}; {options['repeats']} runs of {options['duration']} s, "
        f"alternating; {machine['cores']} cores, {machine['cpu']}, {machine['memory_mb']:,} MiB, "
        f"{machine['kernel']}"
    )


def _checked(report: Report) -> str:
    requests = sum(check["requests"] for check in report.checks)
    return (
        f"Before the timed runs, {requests:,} answers were compared one to one with their "
        "requests; in them, every answer had to be the body of a request in flight."
    )


def _versions(report: Report) -> str:
    return ", ".join(f"{name} {version or '-'}" for name, version in report.versions.items()) + "."


def _legend(connections: list[int]) -> str:
    return "".join(f"<i class='f{i % 4}'></i>{n:,}" for i, n in enumerate(connections))


def _chart(
    summaries: list[Summary], connections: list[int], path: tuple[str, ...], title: str
) -> str:
    """Draw horizontal bars: a group for each strategy, in it a bar per number of connections."""
    strategies = list(dict.fromkeys(s.strategy for s in summaries))
    greatest = max((s.range(*path)[1] for s in summaries), default=0) or 1
    group = _BAR * len(connections) + _GAP
    height = group * len(strategies) + _GAP
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="0" y2="{height}"/>']
    for n, strategy in enumerate(strategies):
        middle = _GAP + n * group + (group - _GAP) / 2 + 4
        parts.append(
            f'<text x="{_LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(strategy)}</text>'
        )
    for summary in summaries:
        colour = connections.index(summary.connections)
        top = _GAP + strategies.index(summary.strategy) * group + colour * _BAR
        parts.append(_bar(summary, path, top, colour, lambda value: value / greatest * _WIDTH))
    size = f"0 0 {_LEFT + _WIDTH + _RIGHT} {height}"
    label = escape(f"{title}, by strategy and connections", quote=True)
    return f'<svg viewBox="{size}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _bar(
    summary: Summary,
    path: tuple[str, ...],
    top: float,
    colour: int,
    scale: Callable[[float], float],
) -> str:
    value, (low, high) = summary.median(*path), summary.range(*path)
    middle = top + _BAR / 2 - 1
    text = f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
    hint = f"{summary.strategy}, {summary.connections} connections: {text} ({low:,.1f}-{high:,.1f})"
    return (
        f'<g><title>{escape(hint)}</title><rect class="f{colour % 4}" x="{_LEFT}" y="{top}" '
        f'width="{scale(value):.1f}" height="{_BAR - 2}" rx="2"/>'
        f'<line class="range" x1="{_LEFT + scale(low):.1f}" x2="{_LEFT + scale(high):.1f}" '
        f'y1="{middle}" y2="{middle}"/>'
        f'<text x="{_LEFT + scale(high) + 6:.1f}" y="{top + _BAR - 4}">{text}</text></g>'
    )


def _table(report: Report, summaries: list[Summary]) -> str:
    head, *lines = [line_names(report.rows), *(table_line(s, report.rows) for s in summaries)]
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"
