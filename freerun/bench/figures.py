"""Figures by what was measured, as a table for people."""

from rich.console import Console
from rich.table import Table

Figures = dict[str, float]


def show(measured: dict[str, Figures], console: Console) -> None:
    table = Table("what", "figures", box=None, header_style="dim")
    for what, figures in measured.items():
        shown = [
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:,.4g}" for name, value in figures.items()
        ]
        table.add_row(what, ", ".join(shown))
    console.print(table)
