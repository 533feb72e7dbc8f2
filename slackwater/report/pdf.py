"""The report as a PDF, from the same blocks as the page.

fpdf2 is pure Python, breaks text and tables over pages, and never reads a name as markup. Its built-in fonts only have
Latin-1, so we embed DejaVu, which comes with matplotlib.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater._version import __version__
from slackwater.atomic import write_whole
from slackwater.charts import style
from slackwater.errors import MissingExtraError
from slackwater.report.blocks import Block, Charts, Code, Document, Figures, Notes, Paragraph, Table
from slackwater.report.drawing import WIDTH, Drawing, Label, Polyline, Rectangle, Role

if TYPE_CHECKING:
    from fpdf import FPDF

_MARGIN_MM, _TEXT_PT, _TABLE_PT, _LINE_MM = 18.0, 9.5, 7.5, 4.8
_COLOURS: dict[Role | str, str] = {
    "realised": style.TRAINS,
    "planned": style.SERIES[0],
    "other": "#8AA39A",
    "budget": style.WARNING,
    "rule": style.RULE,
    "ink": style.INK,
    "muted": style.MUTED,
}
_SANS, _MONO = "dejavu", "dejavumono"
_POINTS_PER_MM = 72 / 25.4
_WIDEST = 30
"""Characters up to which a column grows; longer text is wrapped."""


def write_pdf(document: Document, path: Path) -> None:
    """Write the file atomically."""
    pdf = _new_pdf(document)
    try:
        _Layout(pdf).write(document)
        data = bytes(pdf.output())
    finally:
        for font in pdf.fonts.values():
            getattr(font, "close", lambda: None)()  # fpdf2 does not close the font files
    write_whole(path, data)


class _Layout:
    """One document on A4."""

    def __init__(self, pdf: FPDF) -> None:
        self.made = pdf
        self._known = set(pdf.fonts[_SANS].cmap)  # type: ignore[union-attr]

    def write(self, document: Document) -> None:
        """Write the whole document."""
        self.made.add_page()
        self._text(document.title, size=20, bold=True)
        self._text(document.kind, bold=True)
        self._text(document.subtitle, colour="muted")
        if document.warning:
            self.made.ln(2)
            self._text(document.warning, colour="budget", bold=True)
        for section in document.sections:
            self._heading(section.title)
            for block in section.blocks:
                self._block(block)
        self.made.ln(6)
        self._text(document.closing, size=7.5, colour="muted")

    def _block(self, block: Block) -> None:
        match block:
            case Paragraph():
                self._text(block.text)
            case Notes():
                for item in block.items:
                    self._text(f"•  {item}")
            case Figures():
                self._figures(block)
            case Table():
                self._table(block)
            case Charts():
                self._charts(block.drawings)
            case Code():
                self.made.ln(1)
                for line in block.text.splitlines():
                    self._text(line, size=7.5, family=_MONO)
        self.made.ln(1.5)

    def _shown(self, text: str) -> str:
        """Return the text with the code points of missing characters, so that two names never look the same."""
        clean = style.printable(text)
        return "".join(c if ord(c) in self._known else f"\\u{{{ord(c):x}}}" for c in clean)

    def _text(
        self,
        text: str,
        *,
        size: float = _TEXT_PT,
        bold: bool = False,
        colour: str = "ink",
        width: float = 0,
        family: str = _SANS,
    ) -> None:
        self._font(size, bold=bold, colour=colour, family=family)
        self.made.multi_cell(
            width, _LINE_MM * size / _TEXT_PT, self._shown(text), align="L", new_x="LMARGIN", new_y="NEXT"
        )

    def _font(self, size: float, *, bold: bool = False, colour: str = "ink", family: str = _SANS) -> None:
        self.made.set_font(family, style="B" if bold else "", size=size)
        self.made.set_text_color(*_rgb(_COLOURS[colour]))

    def _heading(self, text: str) -> None:
        if self.made.will_page_break(34):
            self.made.add_page()
        self.made.ln(4)
        self.made.set_draw_color(*_rgb(style.INK))
        self.made.set_line_width(0.4)
        self.made.line(self.made.l_margin, self.made.get_y(), self.made.w - self.made.r_margin, self.made.get_y())
        self.made.ln(1.5)
        self._text(text, size=13, bold=True)
        self.made.ln(1)

    def _figures(self, block: Figures) -> None:
        pdf, top = self.made, self.made.get_y()
        width = pdf.epw / len(block.items)
        lowest = top
        for number, item in enumerate(block.items):
            lines = (
                (item.name, 7.5, False, "muted"),
                (item.value, 14.0, True, "ink"),
                (item.unit or " ", 7.5, False, "ink"),
                (item.note, 7.0, False, "muted"),
            )
            pdf.set_y(top)
            for text, size, bold, colour in lines:
                pdf.set_x(pdf.l_margin + number * width)
                self._text(text, size=size, bold=bold, colour=colour, width=width - 3)
            lowest = max(lowest, pdf.get_y())
        pdf.set_y(lowest + 2)

    def _table(self, table: Table) -> None:
        if table.title:
            if self.made.will_page_break(24):
                self.made.add_page()
            self.made.ln(1)
            self._text(table.title, bold=True)
        self._font(_TABLE_PT)
        self.made.set_draw_color(*_rgb(style.RULE))
        self.made.set_line_width(0.15)
        rows = [*table.rows, *([table.total] if table.total else [])]
        widths = self._widths([table.columns, *rows])
        self._font(_TABLE_PT)
        self.made.set_fill_color(255, 255, 255)  # else a chart's colour would fill the cells
        from fpdf.enums import TableBordersLayout, TableHeadingsDisplay
        from fpdf.fonts import FontFace

        heading = FontFace(emphasis="B", color=_rgb(style.MUTED))
        with self.made.table(
            width=min(sum(widths), self.made.epw),
            col_widths=tuple(widths),
            align="L",
            text_align=tuple("R" if right else "L" for right in table.right),
            line_height=3.9,
            padding=(0.6, 1.2, 0.6, 0),
            borders_layout=TableBordersLayout.HORIZONTAL_LINES,
            headings_style=heading,
            first_row_as_headings=any(table.columns),
            repeat_headings=TableHeadingsDisplay.ON_TOP_OF_EVERY_PAGE,
        ) as drawn:
            if any(table.columns):
                drawn.row([self._shown(name) for name in table.columns])
            for number, cells in enumerate(table.rows):
                look = FontFace(emphasis="B") if number in table.sums else None
                drawn.row([self._shown(cell) for cell in cells], style=look)
            if table.total is not None:
                drawn.row([self._shown(cell) for cell in table.total], style=FontFace(emphasis="B"))
        if table.note:
            self._text(table.note, size=7, colour="muted")

    def _widths(self, rows: list[tuple[str, ...]]) -> list[float]:
        """Return column widths by the longest text; columns with much text are narrowed to fit."""
        self.made.set_font(_SANS, style="B", size=_TABLE_PT)
        shown = [[self._shown(cell) for cell in row] for row in rows[:500]]
        full = [max(self.made.get_string_width(cell) for cell in column) + 3.2 for column in zip(*shown, strict=True)]
        short = self.made.get_string_width("n" * _WIDEST)
        least = [min(width, short) for width in full]
        room = self.made.epw
        if sum(full) <= room:
            return full
        if sum(least) >= room:
            return [width * room / sum(least) for width in least]
        spare, want = room - sum(least), sum(full) - sum(least)
        return [low + (high - low) * spare / want for low, high in zip(least, full, strict=True)]

    def _charts(self, drawings: tuple[Drawing, ...]) -> None:
        pdf, gap = self.made, 8.0
        width = (pdf.epw - gap) / 2
        tallest = max(drawing.height for drawing in drawings) * width / WIDTH
        if pdf.will_page_break(tallest + 10):
            pdf.add_page()
        top = pdf.get_y()
        for number, drawing in enumerate(drawings):
            left = pdf.l_margin + number % 2 * (width + gap)
            pdf.set_xy(left, top)
            self._text(drawing.title, size=8.5, bold=True, width=width)
            self._chart(drawing, left, pdf.get_y() + 1, width / WIDTH)
        pdf.set_y(top + tallest + 8)

    def _chart(self, drawing: Drawing, left: float, top: float, scale: float) -> None:
        """Draw at a position; `scale` is mm per unit of the drawing."""
        pdf = self.made
        for shape in drawing.shapes:
            colour = _rgb(_COLOURS[shape.role])
            match shape:
                case Rectangle():
                    pdf.set_fill_color(*colour)
                    x, y = left + shape.x * scale, top + shape.y * scale
                    pdf.rect(x, y, shape.width * scale, shape.height * scale, style="F")
                case Polyline():
                    pdf.set_draw_color(*colour)
                    pdf.set_line_width(shape.width * scale)
                    pdf.set_dash_pattern(*((1.2, 0.9) if shape.dashed else (0.0, 0.0)))
                    pdf.polyline([(left + x * scale, top + y * scale) for x, y in shape.points])
                case Label():
                    self._font(shape.size * scale * _POINTS_PER_MM, colour=shape.role)
                    text = self._shown(shape.text)
                    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * pdf.get_string_width(text)
                    pdf.text(left + shape.x * scale - shift, top + shape.y * scale, text)
        pdf.set_dash_pattern()


def _new_pdf(document: Document) -> FPDF:
    try:
        from fpdf import FPDF
        from matplotlib import get_data_path
    except ImportError as error:
        raise MissingExtraError(str(error.name).split(".")[0], "report") from error
    for name in ("fpdf", "fontTools"):  # they log every table that they leave out of a font
        logging.getLogger(name).setLevel(logging.ERROR)

    class Numbered(FPDF):
        """Pages with a number at the foot."""

        def footer(self) -> None:
            self.set_y(-12)
            self.set_font(_SANS, size=7)
            self.set_text_color(*_rgb(style.MUTED))
            self.cell(0, 5, document.title, align="L")
            self.set_x(self.l_margin)
            self.cell(0, 5, f"Slackwater {__version__}, page {self.page_no()} of {{nb}}", align="R")

    pdf: Any = Numbered(format="A4")
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    pdf.add_font(_SANS, fname=fonts / "DejaVuSans.ttf")
    pdf.add_font(_SANS, style="B", fname=fonts / "DejaVuSans-Bold.ttf")
    pdf.add_font(_MONO, fname=fonts / "DejaVuSansMono.ttf")
    pdf.set_margins(_MARGIN_MM, _MARGIN_MM)
    pdf.set_auto_page_break(True, margin=_MARGIN_MM)
    pdf.set_title(document.title)
    pdf.set_subject(document.kind)
    pdf.set_creator(f"Slackwater {__version__}")
    pdf.set_lang("en")
    # The report's date, not the time, so that the same report gives the same file.
    pdf.creation_date = datetime.fromisoformat(document.date).replace(tzinfo=UTC)
    return pdf  # type: ignore[no-any-return]


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
