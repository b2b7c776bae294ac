"""Draw plots and bars as SVG that needs nothing else: no script, no font, no other file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from statistics import mean

from matplotlib import style
from matplotlib.figure import Figure

from loadtest.plot import Plot
from loadtest.summary import Summary

_look = style.context(
    [
        "petroff10",  # colours that colour-blind readers can tell apart, too
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "loadtest",  # the same figures give the same file
            "font.sans-serif": ["DejaVu Sans"],
            "text.parse_math": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.bottom": False,
            "ytick.left": False,
            "grid.alpha": 0.4,
            "legend.frameon": False,
        },
    ]
)
# Text and axes have the reader's own colour, in light and in dark.
_STYLE = (
    "svg{color-scheme:light dark;color:CanvasText;stroke-linejoin:round}text{fill:currentColor}"
)
_WIDTH, _HEIGHT = 5.2, 3.2  # inches: so small that the text can be read on a phone
_BAR, _REST = 0.19, 0.6  # inches: one bar, and what is around all of them
_GAP = 0.6  # between the bars of two strategies, in bars


@_look
def lines(plot: Plot) -> str:
    """Draw a line through the medians; marked points have a thin one from least to greatest."""
    figure = Figure((_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.add_subplot(xlabel=plot.x, ylabel=plot.y)
    axes.grid()
    for n, (name, points) in enumerate(plot.lines.items()):
        xs, medians, least, greatest = zip(*points, strict=True)
        axes.plot(xs, medians, f"C{n}", label=name)
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
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    return _svg(figure, f"{plot.title}: {plot.y} over {plot.x}")


@_look
def bars(summaries: Sequence[Summary], path: Sequence[str], title: str) -> str:
    """Draw a group for each strategy that has the figure at `path`, in it a bar for each case.

    A bar is the median, a thin line reaches from the least to the greatest.
    """
    having = [s for s in summaries if s.values(*path)]
    names = list(dict.fromkeys(s.strategy for s in having))
    having.sort(key=lambda s: names.index(s.strategy))
    placed = [(n + _GAP * names.index(s.strategy), s) for n, s in enumerate(having)]
    figure = Figure(
        (_WIDTH, _BAR * (len(having) + _GAP * len(names)) + _REST), layout="constrained"
    )
    axes = figure.add_subplot()
    for n, case in enumerate(dict.fromkeys(s.case for s in summaries)):
        for first, (place, s) in enumerate((p, s) for p, s in placed if s.case == case):
            median, (low, high) = s.median(*path), s.range(*path)
            bar = axes.barh(
                place,
                median,
                xerr=[[median - low], [high - median]],
                color=f"C{n}",
                label="" if first else case,
            )
            axes.bar_label(bar, [f"{median:,.{0 if median >= 100 else 1}f}"], padding=4)
    axes.set_yticks([mean(p for p, s in placed if s.strategy == name) for name in names], names)
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines.bottom.set_visible(False)
    return _svg(figure, f"{title}, by strategy and case")


def _svg(figure: Figure, title: str) -> str:
    """Return the drawing, which refers to nothing: not to its own parts either, nor to a DTD."""
    if figure.axes[0].get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=3)
    figure.draw_without_rendering()  # makes the ticks
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
