"""The memo's charts as inline SVG. Only presentation attributes: a strict content policy allows no style attributes."""

from __future__ import annotations

import math
from html import escape

from sparsetui.evidence.text import clean
from sparsetui.report.document import Bars, Lens
from sparsetui.report.numbers import brief

WIDTH = 760
_LABEL = 210
_BAR = 300
_LINE = 24


def bars(chart: Bars) -> str:
    """Labelled horizontal bars on one scale; a negative share is a mark at the origin, an unknown one only text."""
    height = _LINE * len(chart.rows) + 8
    body = []
    for i, (label, share, text) in enumerate(chart.rows):
        y = 4 + _LINE * i
        body.append(_text(0, y + 16, label))
        if share is not None and math.isfinite(share):
            body.append(f'<rect class="track" x="{_LABEL}" y="{y + 3}" width="{_BAR}" height="16"/>')
            if share < 0:
                tip = f"{_LABEL},{y + 11} {_LABEL + 10},{y + 4} {_LABEL + 10},{y + 18}"
                body.append(f'<polygon class="slow" points="{tip}"/>')
            else:
                width = max(min(share, 1.0) * _BAR, 1.0 if share > 0 else 0.0)
                body.append(f'<rect class="bar" x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="16"/>')
        body.append(_text(_LABEL + _BAR + 10, y + 16, text))
    label = "; ".join(f"{label}: {text}" for label, _, text in chart.rows)
    return _svg(height, label, body)


def lens(chart: Lens) -> str:
    """Pressure over iterations with the zones' lower bounds; points carry their label and tail ratio."""
    height, left, right, top, bottom = 280, 50, 160, 12, 30
    points = [p for p in chart.points if math.isfinite(p.pressure)]
    zones = sorted((z for z in chart.zones if math.isfinite(z.low)), key=lambda z: z.low)
    high = max([p.pressure for p in points] + [z.low for z in zones] + [0.0]) * 1.15 or 1.0
    floor = height - bottom

    def y(value: float) -> float:
        return floor - max(value, 0.0) / high * (floor - top)

    body = [f'<path class="axis" d="M{left} {top}V{floor}H{WIDTH - right}"/>']
    for zone in zones:
        at = y(zone.low)
        if zone.low > 0:
            body.append(f'<path class="zone" d="M{left} {at:.1f}H{WIDTH - right}"/>')
        body.append(_text(WIDTH - right + 8, at + 4 if zone.low > 0 else floor - 2, zone.name))
        body.append(_text(4, at + 4, brief(zone.low)))
    step = (WIDTH - right - left) / (len(points) + 1)
    for i, p in enumerate(points, 1):
        x, at = left + i * step, y(p.pressure)
        tail = f", p99/p50 {brief(p.tail)}" if p.tail else ""
        told = escape(clean(f"{p.label}: pressure {brief(p.pressure)}{tail}", 200), quote=True)
        body.append(f'<circle class="bar" cx="{x:.1f}" cy="{at:.1f}" r="5"><title>{told}</title></circle>')
    body.append(_text(left, height - 8, "optimisation iteration"))
    said = "; ".join(f"{p.label}: pressure {brief(p.pressure)}" for p in points)
    return _svg(height, f"bandwidth lens: {said}", body)


def _svg(height: int, label: str, body: list[str]) -> str:
    name = escape(clean(label, 2000), quote=True)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">'
    return "\n".join([head, *body, "</svg>"])


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:.1f}">{escape(clean(text, 120), quote=True)}</text>'
