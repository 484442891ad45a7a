//! Tables that fit every width: less important columns disappear first, then the wide column is cut.

use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::top::fields::{Cell, Clock, Tone, cell, field, is_empty, members};

/// The blanks between two columns.
const GAP: usize = 2;

/// The least width of a column of texts that is cut.
const CUT_MIN: usize = 12;

/// A column of a table: its head, the paths of its field, and its rank. The column with the greatest rank disappears first; rank 0
/// never disappears.
pub(crate) type Column = (&'static str, &'static str, u8);

/// The columns of the tables of a status.
pub(crate) const STREAMS: &[Column] = &[
    ("STREAM", "name", 0),
    ("LIVE", "requests_live", 0),
    ("FRAMES/S", "rates/frames_received", 4),
    ("TOKENS/S", "rates/tokens_received", 0),
    ("SENT/S", "rates/tokens_forwarded", 2),
    ("JOINED/S", "rates/rows_joined", 5),
    ("1ST P50", "first_token_seconds/p50", 6),
    ("1ST P99", "first_token_seconds/p99", 0),
    ("FRAME P99", "frame_seconds/p99", 3),
    ("SINKS", "sinks", 1),
    ("FULL IN", "journal/full_in_seconds", 7),
    ("ENDED", "requests_ended", 8),
];
pub(crate) const SINKS: &[Column] = &[
    ("STREAM", "stream", 3),
    ("SINK", "name", 0),
    ("STATE", "state", 0),
    ("ROWS", "waiting_rows", 0),
    ("TOKENS", "waiting_tokens", 4),
    ("OLDEST", "oldest_seconds", 1),
    ("LAG", "lag_frames", 2),
    ("SPILLED", "spilled_frames", 5),
    ("ROWS/S", "rows_per_second", 1),
    ("JOINED", "rows_joined", 6),
];
pub(crate) const PLUGINS: &[Column] = &[
    ("STREAM", "stream", 4),
    ("PLUGIN", "plugin", 0),
    ("COMPONENT", "component", 3),
    ("VERSION", "version", 3),
    ("DIGEST", "digest", 6),
    ("STATE", "state", 0),
    ("NS/ROW", "ns_per_row", 1),
    ("ROWS", "rows", 0),
    ("OPEN", "requests_open", 5),
    ("MEMORY", "memory_bytes", 5),
    ("VERDICTS", "verdicts", 2),
    ("FAULTS", "faults", 0),
    ("RELOADED", "last_reload/ago_s", 7),
];
pub(crate) const COPIES: &[Column] = &[
    ("COPY", "copy", 0),
    ("STATE", "state", 0),
    ("LAG", "lag_seconds", 0),
    ("TO", "to", 2),
    ("ERROR", "error", 1),
];

/// The columns of the list of requests.
pub(crate) const REQUESTS: &[Column] = &[
    ("RID", "rid", 0),
    ("STREAM", "stream", 5),
    ("STATE", "state", 0),
    ("TENANT", "attributes/tenant", 2),
    ("TOKENS", "tokens_received", 0),
    ("SENT", "tokens_forwarded", 3),
    ("BEGUN", "first_time", 1),
    ("LAST", "last_time", 5),
    ("FINISH", "finish_reason", 0),
    ("PLUGINS", "plugins", 4),
    ("GAPS", "gaps", 6),
];

/// The columns of the tables of one request.
pub(crate) const ROWS: &[Column] = &[
    ("TIME", "time", 0),
    ("FRAME", "frame", 3),
    ("TOKENS", "tokens", 0),
    ("CONTENT", "text|missing|ids", 1),
    ("OUTCOME", "actions/0/verdict|passage", 0),
    ("BY", "actions/0/plugin", 2),
    ("FINISH", "finish_reason", 2),
    ("GAP", "gap", 4),
    ("TAKEN BY", "taken_by", 5),
];
pub(crate) const STAGES: &[Column] = &[
    ("TIME", "time", 0),
    ("STAGE", "stage", 0),
    ("OF", "plugin|sink", 0),
    ("FRAME", "frame", 0),
    ("STREAM", "stream", 1),
];
pub(crate) const NEIGHBOURS: &[Column] = &[("RID", "rid", 0), ("SHARED BATCHES", "batches", 0)];

/// How tones are shown: with colours, or by bold, faint and reversed text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) coloured: bool,
}

impl Theme {
    pub(crate) fn style(self, tone: Tone) -> Style {
        let colour = |colour: Color| if self.coloured { Style::new().fg(colour) } else { Style::new() };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Good => colour(Color::Green),
            Tone::Warn => colour(Color::Yellow).add_modifier(Modifier::BOLD),
            Tone::Bad => colour(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Marked => colour(Color::Cyan),
            Tone::Faint => Style::new().add_modifier(Modifier::DIM),
            Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
        }
    }
}

/// A table of texts, without a width.
pub(crate) struct Grid {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Numbers and times stand at the right edge of their column, and are never cut.
    is_right: Vec<bool>,
}

impl Grid {
    /// A table with a row for each of these objects.
    pub(crate) fn new(columns: &'static [Column], objects: &[Value], clock: Clock) -> Grid {
        let row =
            |object| columns.iter().map(|(_, paths, _)| cell(paths, field(object, paths), clock)).collect();
        let has_numbers = |paths| objects.iter().any(|object| field(object, paths).is_number());
        let is_right = |(_, paths, _): &Column| paths.ends_with("time") || has_numbers(paths);
        let is_right = columns.iter().map(is_right).collect();
        Grid { columns, rows: objects.iter().map(row).collect(), is_right }
    }

    /// The head and the rows as lines of at most `width`. `selected` is the row that is marked.
    pub(crate) fn lines(&self, width: usize, theme: Theme, selected: Option<usize>) -> Vec<Line<'static>> {
        let fitted = self.fitted(width);
        let head = |(head, ..): &Column| Cell { text: (*head).to_owned(), tone: Tone::Faint };
        let heads: Vec<Cell> = self.columns.iter().map(head).collect();
        let rows = self.rows.iter().enumerate().map(|(at, row)| {
            let line = self.line(row, &fitted, theme);
            let blanks = Span::raw(" ".repeat(width.saturating_sub(line.width())));
            // The mark of a selected row reaches the edge.
            if selected == Some(at) { (line + blanks).reversed() } else { line }
        });
        std::iter::once(self.line(&heads, &fitted, theme)).chain(rows).collect()
    }

    /// The columns that are shown, each with its width.
    fn fitted(&self, width: usize) -> Vec<(usize, usize)> {
        let wide = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].text.width());
            cells.chain([self.columns[at].0.width()]).max().unwrap_or(0)
        };
        let mut shown: Vec<(usize, usize)> = (0..self.columns.len()).map(|at| (at, wide(at))).collect();
        loop {
            let gaps = GAP * shown.len().saturating_sub(1);
            let least =
                |(at, wide): &(usize, usize)| if self.is_right[*at] { *wide } else { (*wide).min(CUT_MIN) };
            let last = shown.iter().map(|(at, _)| self.columns[*at].2).max().unwrap_or(0);
            if shown.iter().map(least).sum::<usize>() + gaps > width && last > 0 {
                shown.retain(|(at, _)| self.columns[*at].2 < last);
                continue;
            }
            let mut over = (shown.iter().map(|(_, wide)| wide).sum::<usize>() + gaps).saturating_sub(width);
            // The widest column gives first.
            while over > 0 {
                let cut = shown.iter_mut().filter(|(at, wide)| !self.is_right[*at] && *wide > 1);
                let Some((_, wide)) = cut.max_by_key(|(_, wide)| *wide) else { break };
                *wide -= 1;
                over -= 1;
            }
            return shown;
        }
    }

    fn line(&self, row: &[Cell], fitted: &[(usize, usize)], theme: Theme) -> Line<'static> {
        let spans = fitted.iter().enumerate().map(|(number, (at, wide))| {
            let text = cut(&row[*at].text, *wide);
            let blanks = " ".repeat(wide - text.width().min(*wide));
            let gap = " ".repeat(if number == 0 { 0 } else { GAP });
            let text = if self.is_right[*at] { gap + &blanks + &text } else { gap + &text + &blanks };
            Span::styled(text, theme.style(row[*at].tone))
        });
        spans.collect()
    }
}

/// The fields of an object: a line for its own figures, and one for each object and each text in it, behind its name.
pub(crate) fn facts(object: &Value, width: usize, theme: Theme, clock: Clock) -> Vec<Line<'static>> {
    let mut own = object.clone();
    let mut lines = Vec::new();
    let fields = own.as_object_mut();
    let is_figure = |value: &Value| value.is_number() || value.is_boolean();
    let is_text = |value: &Value| !is_figure(value) && !is_empty(value);
    for (name, value) in object.as_object().into_iter().flatten().filter(|(_, value)| is_text(value)) {
        let Cell { text, tone } = cell(name, value, clock);
        let text = if value.is_object() { members(name, value, clock).join(FACTS_GAP) } else { text };
        lines.extend(fact(&name.replace('_', " "), &text, tone, width, theme));
    }
    fields.into_iter().for_each(|fields| fields.retain(|_, value| is_figure(value)));
    lines.extend(fact("", &members("", &own, clock).join(FACTS_GAP), Tone::Plain, width, theme));
    lines
}

/// The blanks between two facts of a line.
const FACTS_GAP: &str = "   ";

/// A text behind its label, broken between words.
fn fact(label: &str, text: &str, tone: Tone, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let label = if label.is_empty() { String::new() } else { format!("{}  ", crate::escaped(label)) };
    let wrapped = crate::wrapped_to(text, label.width(), width);
    let mut lines: Vec<Line<'static>> =
        wrapped.lines().map(|line| Line::styled(line.to_owned(), theme.style(tone))).collect();
    if let Some(first) = lines.first_mut() {
        first.spans.insert(0, Span::styled(label, Style::new().add_modifier(Modifier::DIM)));
    }
    lines
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
