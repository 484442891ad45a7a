//! The view of plugins: a line for each, and the selected one in full.

use crate as figures;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::top::app::App;
use crate::top::draw::table;
use crate::top::facts::Facts;
use crate::top::grid::Cell;
use crate::top::sections;
use crate::top::status::{Plugin, Status};
use crate::top::text::long;
use crate::top::theme::Tone;

/// The width of the labels of facts.
const LABEL: usize = 11;

pub(super) fn draw(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let empty = Status::default();
    let status = app.status.as_ref().unwrap_or(&empty);
    let selected = app.selected();
    let facts = status.plugins.get(selected).map(|plugin| facts_of(app, plugin, area.width.into()));
    let facts = facts.unwrap_or_default();
    let rows = status.plugins.len() as u16;
    let list_lines =
        (rows + 1).min((area.height / 2).max(area.height.saturating_sub(facts.len() as u16 + 1)));
    let [list, _, below] =
        Layout::vertical([Constraint::Length(list_lines), Constraint::Length(1), Constraint::Fill(1)])
            .areas(area);
    let fits = table(&sections::plugins(status), Some(selected), "no plugin", app.theme, frame, list);
    frame.render_widget(Paragraph::new(facts), below);
    app.page_rows = fits;
}

fn facts_of(app: &App, plugin: &Plugin, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut facts = Facts { theme: app.theme, width, label_width: LABEL, lines: &mut lines };
    if let Some(why) = &plugin.why {
        facts.add("why", [Cell::toned(why, Tone::Bad)]);
    }
    if let Some(why) = &plugin.not_ready {
        facts.add("not ready", [Cell::toned(why, Tone::Bad)]);
    }
    facts.add(
        "component",
        [
            format!("{} {}", plugin.component, plugin.version).into(),
            Cell::from(&plugin.source),
            Cell::from(&plugin.digest),
        ],
    );
    if let Some(next) = &plugin.next_digest {
        let text = format!("{next} replays the earlier rows of live requests and then takes over");
        facts.add("next", [Cell::toned(text, Tone::Marked)]);
    }
    facts.add(
        "cost",
        [
            plugin
                .ns_per_row
                .map_or_else(|| "no row yet".to_owned(), |ns| format!("{ns:.0} ns a row"))
                .into(),
            format!("{} rows", figures::count(plugin.rows)).into(),
            format!("{} requests open", figures::count(plugin.requests_open)).into(),
            figures::bytes(plugin.memory_bytes).into(),
        ],
    );
    facts.add("verdicts", [Cell::from(sections::counts(&plugin.verdicts))]);
    let faults = match plugin.faults.is_empty() {
        true => Cell::from("none"),
        false => Cell::toned(sections::counts(&plugin.faults), Tone::Warn),
    };
    facts.add("faults", [faults, format!("on_fault = {}", plugin.on_fault).into()]);
    if let Some(reload) = &plugin.last_reload {
        let ago = long(reload.ago_s as f64);
        facts.add(
            "last reload",
            [match &reload.refused {
                None => Cell::from(format!("{ago} ago")),
                Some(why) => Cell::toned(format!("refused {ago} ago: {why}"), Tone::Warn),
            }],
        );
    }
    lines
}
