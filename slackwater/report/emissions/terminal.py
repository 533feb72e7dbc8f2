"""The report in a terminal: the totals, and by client, zone, day and source."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from slackwater.accounting.statement import Statement
from slackwater.report import style
from slackwater.report.emissions import content, tables
from slackwater.report.emissions.blocks import Figures, Table
from slackwater.report.emissions.numbers import Kilograms

_MOST_ROWS = 15
_LONGEST = 34


def summary(statement: Statement) -> RenderableType:
    """Show what fits a screen."""
    kg = Kilograms.for_total(statement.account.total_kg)
    shown = content.document(statement)
    glance = shown.sections[0].blocks[0]
    parts: list[RenderableType] = [
        Text(shown.title, style="bold"),
        Text(shown.kind),
        Text(style.printable(shown.subtitle), style="dim"),
    ]
    if shown.warning:
        parts.append(Text(shown.warning, style="bold yellow"))
    if isinstance(glance, Figures):
        parts.append(_figures(glance))
    zones, sources = tables.sources(statement, kg)
    causes = tables.happened(statement, kg)[0]
    for table in (tables.clients(statement, kg), tables.days(statement, kg), zones, sources, causes):
        if isinstance(table, Table):
            parts += [Text(""), _table(table)]
    parts += [Text(""), Text("Everything else: --html, --pdf, --csv, --codecarbon or --json.", style="dim")]
    return Group(*parts)


def _figures(block: Figures) -> RichTable:
    table = RichTable(box=None, show_header=False, pad_edge=False)
    for item in block.items:
        value = style.printable(f"{item.value} {item.unit}".strip())
        table.add_row(Text(item.name), Text(value, style="bold"), Text(style.printable(item.note), style="dim"))
    return table


def _table(table: Table) -> RichTable:
    made = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for name, right in zip(table.columns, table.right, strict=True):
        made.add_column(name, justify="right" if right else "left", no_wrap=right)
    for row in table.rows[:_MOST_ROWS]:
        made.add_row(*(Text(style.shortened(cell, _LONGEST)) for cell in row))
    if len(table.rows) > _MOST_ROWS:
        made.add_row(Text(f"and {len(table.rows) - _MOST_ROWS:,} more", style="dim"))
    if table.total is not None:
        made.add_row(*(Text(cell, style="bold") for cell in table.total))
    return made
