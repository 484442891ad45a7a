//! The colours of a screen. `NO_COLOR` leaves bold, faint and reversed text.

use ratatui::style::{Color, Modifier, Style};

/// The meaning of a text, from which its colour follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    /// A highlighted word.
    Marked,
    /// Less important.
    Faint,
    /// More important.
    Strong,
}

/// How tones are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    coloured: bool,
}

impl Theme {
    /// A theme with colours, if `coloured`.
    pub(crate) fn new(coloured: bool) -> Theme {
        Theme { coloured }
    }

    #[cfg(test)]
    pub(crate) fn plain() -> Theme {
        Theme { coloured: false }
    }

    pub(crate) fn style(self, tone: Tone) -> Style {
        let colour = |colour: Color, otherwise: Modifier| match self.coloured {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(otherwise),
        };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Good => colour(Color::Green, Modifier::empty()),
            Tone::Warn => colour(Color::Yellow, Modifier::BOLD),
            Tone::Bad => colour(Color::Red, Modifier::BOLD).add_modifier(Modifier::BOLD),
            Tone::Marked => colour(Color::Cyan, Modifier::empty()),
            Tone::Faint => Style::new().add_modifier(Modifier::DIM),
            Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    /// The selected row, and the open view.
    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
