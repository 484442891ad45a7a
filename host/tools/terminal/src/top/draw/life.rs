//! The view of one request.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::top::app::App;
use crate::top::grid::cut;
use crate::top::text::safe;
use crate::top::theme::Tone;

pub(super) fn draw(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let theme = app.theme;
    let Some(life) = &mut app.life else { return };
    let width = usize::from(area.width);
    let lines = match &life.answer {
        None => vec![Line::styled("asking …", theme.style(Tone::Faint))],
        Some(Err(why)) => vec![Line::styled(cut(&safe(why), width), theme.style(Tone::Bad))],
        Some(Ok(text)) => text.lines(width, theme),
    };
    let fits = usize::from(area.height);
    life.lines = lines.len();
    life.scroll = life.scroll.min(life.lines.saturating_sub(fits));
    let shown: Vec<Line<'_>> = lines.into_iter().skip(life.scroll).take(fits).collect();
    app.page_rows = fits;
    frame.render_widget(Paragraph::new(shown), area);
}
