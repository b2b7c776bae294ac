"""Draw plots and bars as SVG that needs nothing else: no script, no font, no other file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from statistics import mean
from textwrap import fill

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from loadtest.plot import Plot
from loadtest.summary import Summary

_look = style.context(
    [
        "petroff10",  # colours that colour-blind readers can tell apart, too
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "loadtest",  # the same figures give the same file
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 11,
            "text.parse_math": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.bottom": False,
            "ytick.left": False,
            "grid.alpha": 0.4,
            "legend.frameon": False,
            "legend.fontsize": "medium",
            "legend.columnspacing": 1.2,
            "legend.handlelength": 1.4,
        },
    ]
)
# Text and axes have the reader's own colour, in light and in dark.
_STYLE = (
    "svg{color-scheme:light dark;color:CanvasText;stroke-linejoin:round}text{fill:currentColor}"
)
#: Inches. A page is 358 pixels wide on a phone of 390: text of 11 points has 11.6 pixels there.
_WIDTH, _HEIGHT = 4.7, 3.1
_BAR, _REST = 0.2, 0.65  # inches: one bar, and what is around all of them
_GAP = 0.6  # between the bars of two strategies, in bars
_NAME, _CASE = 18, 40  # characters in a line of a strategy's name, and of a case's
#: Bars of which the longest is more than so many times the shortest could not be compared.
_LOG_ABOVE = 50
_LEGEND = 0.85  # of the width, as a browser's font may be wider than the one that is measured here
_COLOURS = 10  # of the style; lines beyond them are dashed


@_look
def lines(plot: Plot) -> str:
    """Draw a line through the medians; marked points have a thin one from least to greatest."""
    figure = Figure((_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.add_subplot(xlabel=plot.x, ylabel=plot.y)
    axes.grid()
    for n, (name, points) in enumerate(plot.lines.items()):
        xs, medians, least, greatest = zip(*points, strict=True)
        axes.plot(
            xs, medians, f"C{n}", label=fill(name, _CASE), linestyle="-" if n < _COLOURS else "--"
        )
        if not plot.linear:
            axes.vlines(xs, least, greatest, f"C{n}")
            # Dots, but not a line's own markers: each of those would be a reference.
            axes.vlines(xs, medians, medians, f"C{n}", linewidth=6, capstyle="round")
    if plot.linear:
        axes.set_xlim(left=0)
    else:
        ticks = sorted({x for points in plot.lines.values() for x, *_ in points})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{x:,g}" for x in ticks])
        axes.minorticks_off()
    if plot.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    return _svg(figure, f"{plot.title}: {plot.y} over {plot.x}")


def logarithmic(summaries: Sequence[Summary], path: Sequence[str]) -> bool:
    """Do these medians differ so much that `bars` draws them on a logarithmic scale?"""
    medians = [s.median(*path) for s in summaries if s.values(*path)]
    return min(medians) > 0 and max(medians) > _LOG_ABOVE * min(medians)


@_look
def bars(summaries: Sequence[Summary], path: Sequence[str], title: str) -> str:
    """Draw a group for each strategy that has the figure at `path`, in it a bar for each case.

    The bars of a single strategy have the names of their cases beside them. A bar is the median, a
    thin line reaches from the least to the greatest. On a logarithmic scale, which has no zero to
    begin at, there are dots instead.
    """
    having = [s for s in summaries if s.values(*path)]
    one = len({s.strategy for s in having}) == 1
    gap = 0 if one else _GAP

    def group(s: Summary) -> str:
        return s.case if one else s.strategy

    names = list(dict.fromkeys(map(group, having)))
    having.sort(key=lambda s: names.index(group(s)))
    placed = [(n + gap * names.index(group(s)), s) for n, s in enumerate(having)]
    labels = [fill(name, _NAME) for name in names]
    # A name may need more lines than its group has bars.
    rooms = [sum(group(s) == name for s in having) + gap for name in names]
    taller = max(
        1.0, *((label.count("\n") + 1) / room for label, room in zip(labels, rooms, strict=True))
    )
    height = _BAR * (len(having) + gap * len(names)) * taller + _REST
    figure = Figure((_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    log = logarithmic(having, path)
    for n, case in enumerate(dict.fromkeys(s.case for s in summaries)):
        for first, (place, s) in enumerate((p, s) for p, s in placed if s.case == case):
            median, (low, high) = s.median(*path), s.range(*path)
            said = f"{median:,.{0 if median >= 100 else 1}f}"
            label = "" if first or one else fill(case, _CASE)
            colour = "C0" if one else f"C{n}"
            if log:
                axes.hlines(place, low, high, colour, label=label)
                axes.hlines(place, median, median, colour, linewidth=8, capstyle="round")
                axes.annotate(said, (high, place), (8, 0), textcoords="offset points", va="center")
            else:
                error = [[median - low], [high - median]]
                axes.barh(place, median, xerr=error, color=colour, label=label)
                # On the right also of what is below 0, as names are on the left.
                right = max(high, 0.0), place
                axes.annotate(said, right, (4, 0), textcoords="offset points", va="center")
    axes.set_yticks([mean(p for p, s in placed if group(s) == name) for name in names], labels)
    axes.invert_yaxis()
    if log:
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x")
    else:
        axes.xaxis.set_visible(False)
        axes.spines.bottom.set_visible(False)
    return _svg(figure, f"{title}, by strategy and case")


def _svg(figure: Figure, title: str) -> str:
    """Return the drawing, which refers to nothing: not to its own parts either, nor to a DTD."""
    (axes,) = figure.axes
    if axes.get_legend_handles_labels()[0]:
        _add_legend(figure)
    figure.draw_without_rendering()  # makes the ticks
    _leave_out_ticks(axes)
    for artist in figure.findobj():
        artist.set_clip_on(False)  # a clip path is a reference
    file = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace("#000000", "currentColor")
    text = re.sub(r' (id|version|xmlns:xlink)="[^"]*"', "", text).replace(" ", ' role="img" ', 1)
    head = f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    return re.sub("<defs>.*?</defs>", lambda _: head, text, count=1, flags=re.DOTALL)


def _add_legend(figure: Figure) -> None:
    """Add a legend with as many columns as there is room for."""
    for columns in (3, 2, 1):
        legend = figure.legend(loc="outside upper left", ncols=columns)
        figure.draw_without_rendering()
        box = legend.get_window_extent()
        if columns == 1 or box.width <= _LEGEND * figure.bbox.width:
            break
        legend.remove()
    # Each line of the legend takes from the height of what is drawn.
    lines = round(box.height / figure.dpi / _BAR)
    figure.set_figheight(figure.get_figheight() + _BAR * max(0, lines - 2))


def _leave_out_ticks(axes: Axes) -> None:
    """Leave out the labels of the x axis that would overlap the one before."""
    end = float("-inf")
    for label in axes.get_xticklabels():
        box = label.get_window_extent()
        inside = axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1
        if inside and label.get_text():
            label.set_visible(box.x0 > end)
            end = box.x1 if box.x0 > end else end
