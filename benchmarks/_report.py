"""Report of the speed suite: a table, a JSON file, and a chart for the README."""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results.json"
CHART = Path(__file__).parent.parent / "docs" / "speed.svg"


@dataclass(frozen=True)
class Comparison:
    """Measurements of two sides in pairs, and the goal for their ratio."""

    case: str
    against: str
    goal: float | None
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str = "/s"
    at_most: bool = False  # the goal is an upper bound
    peer: bool = False  # the other side is another server
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        return sorted(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def is_met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.ratio <= self.goal if self.at_most else self.ratio >= self.goal


def print_comparison(row: Comparison) -> None:
    """Print a row of the table."""
    goal = "" if row.goal is None else f"goal {'≤' if row.at_most else '≥'} {row.goal:g}"
    met = {None: "", True: "met", False: "NOT MET"}[row.is_met]
    low, high = row.ratios[0], row.ratios[-1]
    print(
        f"{row.case:36} {_figure(median(row.ours), row.unit):>11} "
        f"{row.ratio:6.2f} {row.against:18} [{low:.2f} – {high:.2f}] {goal:10} {met} {row.note}",
        flush=True,
    )


def save(rows: Sequence[Comparison], peers: Mapping[str, str], absent: Sequence[str]) -> None:
    """Write the results and the chart."""
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "python": platform.python_version(),
        "versions": {
            name: version(name) for name in ("mcpp-pods", "msgspec", "uvloop", "websockets")
        },
        "peers": dict(peers),
        "absent": list(absent),
        "rows": [
            {
                "case": row.case,
                "against": row.against,
                "unit": row.unit,
                "ours": [round(each, 3) for each in row.ours],
                "theirs": [round(each, 3) for each in row.theirs],
                "ratio": round(row.ratio, 3),
                "spread": [round(row.ratios[0], 3), round(row.ratios[-1], 3)],
                "goal": row.goal,
                "goal_is": "at most" if row.at_most else "at least",
                "met": row.is_met,
                "note": row.note,
            }
            for row in rows
        ],
    }
    RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    CHART.write_text(_chart([row for row in rows if row.peer]))
    print(f"\nwrote {RESULTS.name} and {CHART.name}")


def _chart(rows: Sequence[Comparison]) -> str:
    """Return a bar chart of the ratios to each peer, on a logarithmic scale."""
    step, left, tenfold = 24, 320, 110  # pixels per row, left of "1×", and for a factor of ten
    size = f"0 0 {left + 2 * tenfold + 70} {len(rows) * step + 40}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-size="13">',
        "<style>text{fill:#333;font-family:system-ui,sans-serif}rect{fill:#3b6ea8}",
        "line{stroke:#999;stroke-dasharray:3 3}",
        "@media(prefers-color-scheme:dark){text{fill:#ddd}rect{fill:#7fb0e6}}</style>",
        '<text y="16" font-weight="600">Deliveries a second, as a multiple of each peer’s</text>',
    ]
    for number, row in enumerate(rows):
        y = 30 + number * step
        at = round(tenfold * math.log10(row.ratio))
        x, width = left + min(0, at), max(1, abs(at))
        parts += [
            f'<text y="{y + 15}">{row.case}, {row.against}</text>',
            f'<rect x="{x}" y="{y + 3}" width="{width}" height="15" rx="2"/>',
            f'<text x="{left + max(0, at) + 6}" y="{y + 15}">{row.ratio:.1f}×</text>',
        ]
    parts.append(f'<line x1="{left}" x2="{left}" y1="26" y2="{30 + len(rows) * step}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _figure(value: float, unit: str) -> str:
    if unit != "/s":
        return f"{value:.2f} {unit}"
    return f"{value / 1e6:.2f} M/s" if value >= 1e5 else f"{value / 1e3:.1f} k/s"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
