"""Draw a report as one HTML page that needs nothing else: text, bars, plots, tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from loadtest import plot
from loadtest.report import Report
from loadtest.summary import Summary

# The colours come from `plot`.
_STYLE = """
:root { color-scheme: light dark; --soft: #5b6570; --ground: #fff; --box: #f3f5f8 }
@media (prefers-color-scheme: dark) { :root { --soft: #9aa5b1; --ground: #15181c;
  --box: #1f242a } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground);
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
.soft { color: var(--soft); font-size: .9rem } .box { background: var(--box);
  border-left: 4px solid var(--c0); padding: .8rem 1rem; border-radius: 4px }
.bad { border-left-color: #d33 } .charts { display: grid; gap: 0 2.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
svg { width: 100%; height: auto; display: block }
.spread { stroke: var(--text); stroke-width: 1.5 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .87rem;
  font-variant-numeric: tabular-nums; width: 100% }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  white-space: nowrap } .name { text-align: left }
th { color: var(--soft); font-weight: 600 } i { display: inline-block; width: .8em; height: .8em;
  border-radius: 2px; margin: 0 .35em 0 1em }
"""

# Pixels of the drawing, before it is scaled.
_LEFT, _WIDTH, _RIGHT, _BAR, _GAP = 150, 300, 80, 16, 10


def render(report: Report) -> str:
    """Return the page."""
    summaries = report.summaries()
    cases = list(dict.fromkeys(s.case for s in summaries))
    charts = "".join(
        f"<section><h2>{title} <span class='soft'>({better})</span></h2>"
        f"{_chart(summaries, cases, path, title)}</section>"
        for title, better, path in report.charts
        if any(s.values(*path) for s in summaries)
    )
    plots = "".join(
        f"<section><h2>{escape(each.title)}</h2>{each.svg()}</section>" for each in report.plots
    )
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in report.problems())
    error = f"<div class='box bad'>A failed run:<ul>{problems}</ul></div>" if problems else ""
    judged = (
        f"<h2>Against the targets</h2><div class='scroll'>{_table(report.target_lines(), 1)}</div>"
        if report.targets
        else ""
    )
    remarks = "".join(f"<p class='soft'>{escape(remark)}</p>" for remark in report.remarks)
    conclusion = f"<p class='box'>{escape(report.conclusion)}</p>" if report.conclusion else ""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Load test: {escape(report.experiment)}</title>
<style>{plot.style()}{_STYLE}</style>
<h1>Load test: {escape(report.experiment)}</h1>
<p class="soft">{escape(_circumstances(report))}</p>
{error}
<h2>What it says</h2>
{conclusion}
{judged}
{remarks}
<p class="soft">{escape(report.shared())} Bars are the medians of the repeats, the thin lines
reach from the least to the greatest.</p>
<div class="charts">{plots}</div>
<p>{_legend(cases)}</p>
<div class="charts">{charts}</div>
<h2>All medians</h2>
<div class="scroll">{_table(report.lines(), 2)}</div>
<p class="soft">{escape(report.notes())}</p>
<p class="soft">{escape(_checked(report))}</p>
<p class="soft">Commit {escape(report.commit)}. {escape(_versions(report))}</p>
</html>
"""


def _circumstances(report: Report) -> str:
    machine, options = report.machine, report.options
    task = f"Task {options['task']}; " if options.get("task") else ""
    return (
        f"{task}{options['repeats']} runs of {options['duration']} s, "
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


def _legend(cases: list[str]) -> str:
    return "".join(
        f"<i class='c{i % len(plot.COLOURS)}'></i>{escape(case)}" for i, case in enumerate(cases)
    )


def _chart(summaries: list[Summary], cases: list[str], path: tuple[str, ...], title: str) -> str:
    """Draw horizontal bars: a group for each strategy, in it a bar for each of its cases."""
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.values(*path):
            groups.setdefault(summary.strategy, []).append(summary)
    greatest = max((s.range(*path)[1] for group in groups.values() for s in group), default=0) or 1
    parts, top = [], _GAP
    for strategy, group in groups.items():
        middle = top + _BAR * len(group) / 2 + 4
        parts.append(
            f'<text x="{_LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(strategy)}</text>'
        )
        for summary in group:
            colour = cases.index(summary.case) % len(plot.COLOURS)
            parts.append(_bar(summary, path, top, colour, lambda v: v / greatest * _WIDTH))
            top += _BAR
        top += _GAP
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="0" y2="{top}"/>')
    size = f"0 0 {_LEFT + _WIDTH + _RIGHT} {top}"
    label = escape(f"{title}, by strategy and case", quote=True)
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
    hint = f"{summary.strategy}, {summary.case}: {text} ({low:,.1f}-{high:,.1f})"
    return (
        f'<g><title>{escape(hint)}</title><rect class="c{colour}" x="{_LEFT}" y="{top}" '
        f'width="{scale(value):.1f}" height="{_BAR - 2}" rx="2"/>'
        f'<line class="spread" x1="{_LEFT + scale(low):.1f}" x2="{_LEFT + scale(high):.1f}" '
        f'y1="{middle}" y2="{middle}"/>'
        f'<text x="{_LEFT + scale(high) + 6:.1f}" y="{top + _BAR - 4}">{text}</text></g>'
    )


def _table(lines: Sequence[Sequence[str]], left: int) -> str:
    """Draw `lines`, the first of which is the head; the first `left` columns hold names."""
    head, *rest = lines

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=name' if i < left else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{row(line, 'td')}</tr>" for line in rest)
    return f"<table><thead><tr>{row(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
