//! Tables that fit every width: less important columns disappear first, then the wide column is cut.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::top::text::safe;
use crate::top::theme::{Theme, Tone};

/// The blanks between two columns.
const GAP: usize = 2;
/// The least width of a column that may be cut.
const CUT_MIN: usize = 12;

/// A table of texts, without a width.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grid {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) head: &'static str,
    /// Numbers stand at the right edge.
    right: bool,
    /// The column with the greatest rank disappears first. 0 never disappears.
    rank: u8,
    /// The column may be cut to [`CUT_MIN`].
    cut: bool,
}

/// A text of a table. It is safe for a terminal.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Column {
    /// A column of texts, which may be cut.
    pub(crate) fn text(head: &'static str, rank: u8) -> Column {
        Column { head, right: false, rank, cut: true }
    }

    /// A column of texts that are never cut.
    pub(crate) fn word(head: &'static str, rank: u8) -> Column {
        Column { head, right: false, rank, cut: false }
    }

    /// A column of numbers.
    pub(crate) fn number(head: &'static str, rank: u8) -> Column {
        Column { head, right: true, rank, cut: false }
    }
}

impl Cell {
    pub(crate) fn toned(text: impl AsRef<str>, tone: Tone) -> Cell {
        Cell { text: safe(text.as_ref()), tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::toned(text, Tone::Plain)
    }
}

impl Grid {
    /// The head and the rows as lines of at most `width`. `selected` is the row that is marked.
    pub(crate) fn lines(
        &self,
        width: usize,
        theme: Theme,
        selected: Option<usize>,
    ) -> (Line<'static>, Vec<Line<'static>>) {
        let fitted = self.fitted(width);
        let heads: Vec<Cell> =
            self.columns.iter().map(|column| Cell::toned(column.head, Tone::Faint)).collect();
        let head = self.line(&heads, &fitted, width, theme, Style::new());
        let rows = self.rows.iter().enumerate().map(|(at, row)| {
            let base = if selected == Some(at) { theme.selected() } else { Style::new() };
            self.line(row, &fitted, width, theme, base)
        });
        (head, rows.collect())
    }

    /// The columns that are shown, each with its width.
    fn fitted(&self, width: usize) -> Vec<(usize, usize)> {
        let wide = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.text.width());
            cells.chain([self.columns[at].head.width()]).max().unwrap_or(0)
        };
        let mut shown: Vec<(usize, usize)> = (0..self.columns.len()).map(|at| (at, wide(at))).collect();
        loop {
            let gaps = GAP * shown.len().saturating_sub(1);
            let least = |(at, wide): &(usize, usize)| match self.columns[*at].cut {
                true => (*wide).min(CUT_MIN),
                false => *wide,
            };
            let needed: usize = shown.iter().map(least).sum::<usize>() + gaps;
            let last = shown.iter().map(|(at, _)| self.columns[*at].rank).max().unwrap_or(0);
            if needed <= width || last == 0 {
                let mut over =
                    (shown.iter().map(|(_, wide)| wide).sum::<usize>() + gaps).saturating_sub(width);
                // The widest column gives first.
                while over > 0 {
                    let cut = shown.iter_mut().filter(|(at, wide)| self.columns[*at].cut && *wide > 1);
                    let Some((_, wide)) = cut.max_by_key(|(_, wide)| *wide) else { break };
                    *wide -= 1;
                    over -= 1;
                }
                return shown;
            }
            shown.retain(|(at, _)| self.columns[*at].rank < last);
        }
    }

    fn line(
        &self,
        row: &[Cell],
        fitted: &[(usize, usize)],
        width: usize,
        theme: Theme,
        base: Style,
    ) -> Line<'static> {
        let mut spans = Vec::new();
        let mut used = 0;
        for (number, (at, wide)) in fitted.iter().enumerate() {
            let Some(cell) = row.get(*at) else { continue };
            let text = cut(&cell.text, *wide);
            let blanks = " ".repeat(wide - text.width().min(*wide));
            let gap = if number == 0 { 0 } else { GAP };
            let text = match self.columns[*at].right {
                true => format!("{:gap$}{blanks}{text}", ""),
                false => format!("{:gap$}{text}{blanks}", ""),
            };
            used += gap + wide;
            spans.push(Span::styled(text, base.patch(theme.style(cell.tone))));
        }
        // The mark of a selected row reaches the edge.
        spans.push(Span::styled(" ".repeat(width.saturating_sub(used)), base));
        Line::from(spans)
    }
}

/// A text of at most `width` columns; a text that is cut ends with `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 1);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        out.push(c);
    }
    if width > 0 {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid {
            columns: vec![Column::text("NAME", 0), Column::number("ROWS", 0), Column::word("STATE", 1)],
            rows: vec![vec!["a-very-long-name-of-a-sink".into(), "12".into(), "keeping up".into()]],
        }
    }

    fn text(line: &Line<'_>) -> String {
        line.spans.iter().map(|span| span.content.as_ref()).collect::<String>().trim_end().to_owned()
    }

    #[test]
    fn a_wide_screen_has_every_column() {
        let (head, rows) = grid().lines(60, Theme::plain(), None);
        assert_eq!(text(&head), "NAME                        ROWS  STATE");
        assert_eq!(text(&rows[0]), "a-very-long-name-of-a-sink    12  keeping up");
    }

    #[test]
    fn a_narrow_screen_cuts_the_name_and_then_loses_the_least_column() {
        let (_, rows) = grid().lines(36, Theme::plain(), None);
        assert_eq!(text(&rows[0]), "a-very-long-name-…    12  keeping up");
        let (head, rows) = grid().lines(20, Theme::plain(), None);
        assert_eq!(text(&head), "NAME            ROWS");
        assert_eq!(text(&rows[0]), "a-very-long-n…    12");
        assert!((0..20).all(|width| grid().lines(width, Theme::plain(), None).1[0].spans.len() == 3));
    }

    #[test]
    fn a_cut_text_is_never_wider_than_its_column() {
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(["abc", "abc", "abc"].map(|text| cut(text, 0).width()), [0, 0, 0]);
    }
}
