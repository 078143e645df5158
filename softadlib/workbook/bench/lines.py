"""The table of `softad bench` as a person reads it, line by line."""

from collections.abc import Sequence
from typing import Any

LEAST_CORE_SHARE = 0.9
"""Share of a core below which a row's wall times are marked."""


def readable(seconds: float) -> str:
    """Write seconds with their unit."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def range_text(ends: Sequence[float]) -> str:
    """Write the smallest and the largest ratio."""
    return f"{ends[0]:.2f}-{ends[1]:.2f}"


def products_line(table: dict[str, Any]) -> list[str]:
    """Name the speed of the step's own products, which the ratios depend on; nothing for a GPU."""
    if not (speed := table.get("step_products")):
        return []
    return [
        f"products of the perceptron's step, one core: MKL (published) {speed['mkl']:.0f} GFLOP/s, "
        f"oneDNN (most of ours) {speed['onednn']:.0f} GFLOP/s"
    ]


def heading(table: dict[str, Any]) -> str:
    """Name the machine and the columns of `row_line`."""
    facts, best = table["hardware"], table["peaks"]
    lines = [
        f"{facts['device']}, {facts['cores']} cores, torch {facts['torch']}, "
        f"numpy {facts['numpy']}, softadlib {facts['softadlib']}",
        f"best measured here: {best['gflops']:.0f} GFLOP/s, {best['gbps']:.0f} GB/s",
        *products_line(table),
        *([f"warning: {table['warning']}"] if table["warning"] else []),
        "",
        f"{'':54} {'by wall time':>19}  {'by CPU time':>19}",
        f"{'case':20} {'layout':11} {'published':>9} {'ours':>9} {'per':>5} "
        f"{'ratio':>6} {'range':>12}  {'ratio':>6} {'range':>12} {'of peak':>8}  rounds",
    ]
    return "\n".join(lines)


def row_line(row: dict[str, Any]) -> str:
    """Write one row of the table a person reads."""
    share = "" if row["share_of_peak"] is None else f"{row['share_of_peak']:.0%}"
    notes = [row["note"]] if row["note"] else []
    if row["core_share"] < LEAST_CORE_SHARE:
        notes.append(f"others used the cores: a process got {row['core_share']:.0%} of one")
    line = (
        f"{row['case']:20} {row['layout']:11} {readable(row['published_s']):>9} "
        f"{readable(row['ours_s']):>9} {row['per']:>5} "
        f"{row['ratio']:6.2f} {range_text(row['ratio_range']):>12}  "
        f"{row['cpu_ratio']:6.2f} {range_text(row['cpu_ratio_range']):>12} {share:>8}  {row['rounds']}"
    )
    return "  ".join([line, *(f"({note})" for note in notes)])
