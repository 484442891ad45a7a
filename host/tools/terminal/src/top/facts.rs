//! Facts under labels, as lines that fit the width.

use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use crate::top::grid::{Cell, cut};
use crate::top::theme::{Theme, Tone};

/// Facts of one thing under a label, which go on in the next line with the same indent.
pub(crate) struct Facts<'a> {
    pub(crate) theme: Theme,
    pub(crate) width: usize,
    pub(crate) label_width: usize,
    pub(crate) lines: &'a mut Vec<Line<'static>>,
}

impl Facts<'_> {
    /// Adds a label and its facts. A fact is broken only if it is wider than the screen.
    pub(crate) fn add(&mut self, label: &str, facts: impl IntoIterator<Item = Cell>) {
        let indent = self.label_width + 1;
        let room = self.width.saturating_sub(indent).max(1);
        let label = format!("{:1$} ", cut(label, self.label_width), self.label_width);
        let mut spans = vec![Span::styled(label, self.theme.style(Tone::Faint))];
        let mut used = 0;
        for fact in facts {
            for part in pieces(&fact.text, room) {
                let gap = if used == 0 { 0 } else { 3 };
                let wide = part.width();
                if used > 0 && used + gap + wide > room {
                    self.lines.push(Line::from(std::mem::take(&mut spans)));
                    spans.push(Span::raw(" ".repeat(indent)));
                    used = 0;
                } else {
                    spans.push(Span::raw(" ".repeat(gap)));
                    used += gap;
                }
                spans.push(Span::styled(part, self.theme.style(fact.tone)));
                used += wide;
            }
        }
        self.lines.push(Line::from(spans));
    }
}

/// A text in parts of at most `room` columns, broken between words where that is possible.
fn pieces(text: &str, room: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    for word in text.split(' ') {
        if !part.is_empty() && part.width() + 1 + word.width() > room {
            parts.push(std::mem::take(&mut part));
        }
        if !part.is_empty() {
            part.push(' ');
        }
        for c in word.chars() {
            if part.width() + c.to_string().width() > room && !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            part.push(c);
        }
    }
    parts.push(part);
    parts
}
