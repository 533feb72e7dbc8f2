"""The report as one HTML file without scripts or external fonts and images. All user text is escaped here."""

from __future__ import annotations

import html
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from string import Template

from slackwater._version import __version__
from slackwater.charts import style
from slackwater.report.blocks import Block, Charts, Code, Document, Figures, Notes, Paragraph, Table
from slackwater.report.drawing import WIDTH, Drawing, Label, Polyline, Rectangle, Shape


def page(document: Document) -> str:
    """Return the whole file."""
    # Each part is inserted once and not parsed again, so that a $ or a tag in a name stays as it is.
    return Template(_file("page.html")).substitute(
        generator=f"Slackwater {__version__}",
        title=escaped(f"{document.title}: {document.subtitle}"),
        style=_file("page.css"),
        body="\n".join(_body(document)),
    )


def escaped(text: str) -> str:
    """Return a user's text without tags, ends of attributes or characters that turn the writing direction."""
    return html.escape(style.printable(text), quote=True)


def _body(document: Document) -> Iterator[str]:
    yield f"<header><h1>{escaped(document.title)}</h1><p class='kind'>{escaped(document.kind)}</p>"
    yield f"<p class='subtitle'>{escaped(document.subtitle)}</p></header>"
    if document.warning:
        yield f"<p class='warning'>{escaped(document.warning)}</p>"
    yield "<main>"
    for section in document.sections:
        yield f"<section><h2>{escaped(section.title)}</h2>"
        for block in section.blocks:
            yield _block(block)
        yield "</section>"
    yield f"</main><footer><p>{escaped(document.closing)}</p></footer>"


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f"<p>{escaped(block.text)}</p>"
        case Notes():
            return f"<ul>{''.join(f'<li>{escaped(item)}</li>' for item in block.items)}</ul>"
        case Figures():
            return f"<div class='figures'>{''.join(_figures(block))}</div>"
        case Table():
            return _table(block)
        case Charts():
            return f"<div class='charts'>{''.join(_chart(drawing) for drawing in block.drawings)}</div>"
        case Code():
            lines = "\n".join(escaped(line) for line in block.text.splitlines())
            return f"<pre><code>{lines}</code></pre>"


def _figures(block: Figures) -> Iterator[str]:
    for item in block.items:
        yield (
            f"<div class='figure'><div class='name'>{escaped(item.name)}</div>"
            f"<div class='value'>{escaped(item.value)}</div><div class='unit'>{escaped(item.unit)}</div>"
            f"<div class='about'>{escaped(item.note)}</div></div>"
        )


def _table(table: Table) -> str:
    parts = [f"<h3>{escaped(table.title)}</h3>"] if table.title else []
    parts.append("<div class='table'><table>")
    if any(table.columns):
        parts.append(f"<thead>{_row(table.columns, table.right, 'th')}</thead>")
    parts.append("<tbody>")
    parts += [_row(row, table.right, "td", sum_row=n in table.sums) for n, row in enumerate(table.rows)]
    parts.append("</tbody>")
    if table.total is not None:
        parts.append(f"<tfoot>{_row(table.total, table.right, 'td')}</tfoot>")
    parts.append("</table></div>")
    if table.note:
        parts.append(f"<p class='note'>{escaped(table.note)}</p>")
    return "".join(parts)


def _row(cells: tuple[str, ...], right: tuple[bool, ...], tag: str, *, sum_row: bool = False) -> str:
    shown = (
        f"<{tag}{' class=right' if flush else ''}>{escaped(cell)}</{tag}>"
        for cell, flush in zip(cells, right, strict=True)
    )
    return f"<tr{' class=sum' if sum_row else ''}>{''.join(shown)}</tr>"


def _chart(drawing: Drawing) -> str:
    shapes = "".join(_shape(shape) for shape in drawing.shapes)
    return (
        f"<figure><figcaption>{escaped(drawing.title)}</figcaption>"
        f"<svg viewBox='0 0 {WIDTH:g} {drawing.height:g}' role='img' aria-label='{escaped(drawing.description)}'>"
        f"{shapes}</svg></figure>"
    )


def _shape(shape: Shape) -> str:
    colour = f"var(--{shape.role})"
    match shape:
        case Rectangle():
            place = f"x='{shape.x:.1f}' y='{shape.y:.1f}' width='{shape.width:.1f}' height='{shape.height:.1f}'"
            return f"<rect {place} style='fill:{colour}'/>"
        case Polyline():
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
            dash = ";stroke-dasharray:5 4" if shape.dashed else ""
            return f"<polyline points='{points}' style='fill:none;stroke:{colour};stroke-width:{shape.width:g}{dash}'/>"
        case Label():
            place = f"x='{shape.x:.1f}' y='{shape.y:.1f}' text-anchor='{shape.anchor}' font-size='{shape.size:g}'"
            return f"<text {place} style='fill:{colour}'>{escaped(shape.text)}</text>"


@cache
def _file(name: str) -> str:
    return files("slackwater.report").joinpath(name).read_text(encoding="utf-8").rstrip()
