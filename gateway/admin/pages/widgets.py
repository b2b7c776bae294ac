"""Parts of pages, as markup with all that is told of others escaped, and as texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape as _escape

from gateway.journal import entry as states

#: Each state and condition: its symbol, its tone, and its word where that is not the name.
#: Filled symbols need somebody; outlined ones do not.
LOOKS: dict[str, tuple[str, str, str]] = {
    states.RECEIVED: ("ring", "way", ""),
    states.ACCEPTED: ("dot", "way", ""),
    states.RUNNING: ("play", "way", ""),
    states.SUCCEEDED: ("tick", "good", ""),
    states.IGNORED: ("dashed", "idle", ""),
    states.REPLAYED: ("loop", "idle", ""),
    states.REFUSED: ("octagon", "warn", ""),
    states.ANSWERED_LATE: ("late", "good", "answered late"),
    states.LATE_UNCERTAIN: ("clock", "warn", "late, uncertain"),
    states.LATE_FAILED: ("square", "bad", "late, failed"),
    states.FAILED: ("square", "bad", ""),
    states.DEAD_LETTERED: ("diamond", "bad", ""),
    states.EXPIRED: ("hourglass", "bad", ""),
    **dict.fromkeys(("well", "online"), ("tick", "good", "")),
    **dict.fromkeys(("silent", "unknown"), ("dashed", "idle", "")),
    "replaced": ("loop", "idle", ""),
    "all refused": ("octagon", "warn", ""),
    **dict.fromkeys(("no consumer", "lost", "down", "wrong"), ("alarm", "bad", "")),
    **dict.fromkeys(("differs", "hangs", "near a limit"), ("caution", "warn", "")),
}
#: How a time is written: `data-form` of a <time>, which the page's script knows as well.
_FORMS = {
    "clock": "%H:%M:%S",
    "second": "%H:%M:%S",
    "short": "%H:%M",
    "date": "%-d %b %H:%M",
    "day": "%-d %b %H:%M:%S",
    "full": "%a %-d %b %Y, %H:%M:%S",
}
_OLD = 18 * 3600.0  # seconds after which a time is written with its day
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def escape(text: object) -> str:
    """Escape a text for markup, also between quotes."""
    return _escape(str(text), {'"': "&quot;", "'": "&#39;"})


def icon(symbol: str, size: int = 14) -> str:
    """Draw a symbol of templates/icons.html, which says nothing to who cannot see it."""
    return f'<svg width="{size}" height="{size}" aria-hidden="true"><use href="#i-{symbol}"/></svg>'


def _look(state: str) -> tuple[str, str, str]:
    return LOOKS.get(state, ("dashed", "idle", ""))  # a state of a newer gateway


def tone(state: str) -> str:
    return _look(state)[1]


def badge(state: str, word: str | None = None) -> str:
    """Show a state by shape, colour and word; `word` replaces its own, and "" leaves it out."""
    symbol, its_tone, own = _look(state)
    text = escape(own or state) if word is None else escape(word)
    return f'<span class="state {its_tone}">{icon(symbol)}{text and f"<span>{text}</span>"}</span>'


def trouble(state: str, text: object) -> str:
    """Show a number that is bad: bold, with the small shape of its state."""
    symbol, its_tone, _ = _look(state)
    return f'<b class="state {its_tone}">{icon(symbol, 10)}<span>{escape(text)}</span></b>'


def token(text: object, kind: str = "") -> str:
    """Show a short text as a tag."""
    return f'<span class="tag {kind}">{escape(text)}</span>'


def when(at: float | str | datetime, form: str = "") -> str:
    """Show a time (epoch, or ISO 8601) in UTC; the page's script writes it in the viewer's zone.

    Without a `form` (of `_FORMS`) that of a table: older than a day with its day.
    """
    if not at:
        return ""
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    elif not isinstance(at, datetime):
        at = datetime.fromtimestamp(at, UTC)
    at = at.astimezone(UTC)
    old = (datetime.now(UTC) - at).total_seconds() > _OLD
    form = form or ("day" if old else "clock")
    ms = f"<small>.{at.microsecond // 1000:03}</small>" if form in ("clock", "full") else ""
    iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f'<time datetime="{iso}" data-form="{form}">{at.strftime(_FORMS[form])}{ms}</time>'


def age(at: float | str, now: float) -> float:
    """Return the seconds since a time (epoch, or ISO 8601)."""
    return now - (datetime.fromisoformat(at).timestamp() if isinstance(at, str) else at)


def ago(at: float | str, now: float) -> str:
    """Write how long ago a time is, by its greatest unit."""
    seconds = age(at, now)
    return "now" if seconds < 1 else lasting(seconds, 1)


def lasting(seconds: float, units: int = 2) -> str:
    """Write a length of time: ``11.2 ms``, ``1.4 s``, ``6 min 12 s``."""
    seconds = max(seconds, 0.0)  # clocks may differ
    if seconds < 1 and units > 1:
        return f"{seconds * 1000:,.1f} ms"
    if seconds < 10 and units > 1:
        return f"{seconds:.1f} s"
    left = int(seconds)
    parts: list[str] = []
    for size, name in _UNITS:
        if left >= size or (size == 1 and not parts):
            parts.append(f"{left // size} {name}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:units])


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


def number(value: float) -> str:
    """Write a number so that it is short: ``423,104``, ``3.3 M``; small ones with a decimal."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def size(value: float) -> str:
    """Write a number of bytes."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(value) < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.1f} {unit}"


def spark(values: Sequence[float], label: str, width: int = 96, height: int = 20) -> str:
    """Draw rates as a line from 0; `label` is read to who cannot see it."""
    top = max([*values, 1e-9])
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{i * step:.1f},{height - 1 - (height - 2) * value / top:.1f}"
        for i, value in enumerate(values)
    )
    area = f"0,{height} {points} {width},{height}"
    return (
        f'<svg class="spark" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f'<polygon points="{area}"/><polyline points="{points}"/></svg>'
    )


def bars(
    series: Sequence[tuple[str, Sequence[float]]],
    label: str,
    width: int = 96,
    height: int = 20,
    links: Callable[[int], str] | None = None,
    over: str = "",
) -> str:
    """Draw counts as bars, one series upon the other, each with its tone.

    The scale has a floor of 5, so that one failure does not look like many. `links` returns the
    URL of a column, `over` is drawn above all; `width` is that of the scale where the style sheet
    stretches the drawing.
    """
    columns = list(zip(*(values for _, values in series), strict=True))
    top = max([5.0, *map(sum, columns)])
    step = width / max(len(columns), 1)
    drawn = []
    for i, column in enumerate(columns):
        below, rects = 0.0, ""
        for (its_tone, _), value in zip(series, column, strict=True):
            if not value:
                continue
            tall = max((height - 1) * value / top, 1.5)
            below += tall
            rects += (
                f'<rect class="{its_tone}" x="{i * step:.2f}" y="{height - below:.1f}" '
                f'width="{step * 0.84:.2f}" height="{tall:.1f}"/>'
            )
        if rects and links:
            rects = f'<a href="{escape(links(i))}" tabindex="-1">{rects}</a>'
        drawn.append(rects)
    # What has links is no picture; the list beside it says the same.
    about = 'aria-hidden="true"' if links else f'role="img" aria-label="{escape(label)}"'
    return (
        f'<svg class="bars" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'preserveAspectRatio="none" {about}>{"".join(drawn)}{over}</svg>'
    )


def meter(part: float, whole: float, label: str, kind: str = "fill") -> str:
    """Draw how much of a whole there is."""
    share = min(max(part / whole, 0.0), 1.0) if whole else 0.0
    return (
        f'<svg class="meter" width="100%" height="6" role="img" aria-label="{escape(label)}">'
        f'<rect class="whole" width="100%" height="6"/>'
        f'<rect class="{kind}" width="{share * 100:.1f}%" height="6"/></svg>'
    )


def part_of(since: float, until: float, whole: float, kind: str = "fill") -> str:
    """Draw where in a length of time something was; all in seconds."""
    scale = 100 / whole if whole else 0.0
    return (
        '<svg class="gantt" width="200" height="8" aria-hidden="true">'
        '<rect class="whole" y="3" width="100%" height="2"/>'
        f'<rect class="{kind}" x="{min(since * scale, 99):.1f}%" '
        f'width="{max((until - since) * scale, 1):.1f}%" height="8"/></svg>'
    )


def slots(busy: int, all_of: int, hangs: bool = False) -> str:
    """Draw a square for each process of a worker: full, free, and "!" for one that hangs."""
    if all_of > 16:
        return ""
    boxes = "".join(
        f'<rect class="{"fill" if i < busy else "free"}" x="{i * 14 + 0.5}" y="0.5" width="10" '
        'height="10" rx="2"/>'
        for i in range(all_of)
    )
    mark = '<path class="hangs" d="M0.5 0.5h10v10h-10z"/><path class="cut" d="M5.5 2.5v4m0 1v1.5"/>'
    return (
        f'<svg class="slots" width="{all_of * 14}" height="11" aria-hidden="true">{boxes}'
        f"{mark if hangs else ''}</svg>"
    )


#: What templates may use.
ALL: dict[str, Any] = {
    each.__name__: each
    for each in (
        age, ago, badge, bars, icon, lasting, meter, ms, number, part_of, size, slots, spark,
        token, tone, trouble, when,
    )
}  # fmt: skip
