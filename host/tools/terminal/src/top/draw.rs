//! From the state to a frame of the terminal, at any size.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline, Tabs};
use serde_json::Value;
use std::time::Instant;
use unicode_width::UnicodeWidthStr;

use crate::top::app::{App, REQUESTS, STREAMS, VIEWS};
use crate::top::fields::{Tone, long, safe};
use crate::top::grid::{self, Grid, cut, facts};
use crate::top::plain::{list, sentence, version};
use crate::top::poll;

/// The most lines of a curve.
const CURVE: u16 = 8;

/// Draws the screen. `now` is the time since which nobody may have answered.
pub(crate) fn draw(app: &mut App, frame: &mut Frame<'_>, now: Instant) {
    let area = frame.area();
    let messages = messages(app, area, now);
    let [head, says, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(messages.len() as u16),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(header(app), head);
    frame.render_widget(Paragraph::new(messages), says);
    let names = VIEWS.iter().enumerate().map(|(at, (name, ..))| format!("{} {name}", at + 1));
    frame.render_widget(Tabs::new(names).select(app.view).divider(""), tabs);
    match app.life {
        Some(_) => life(app, frame, body),
        None => view(app, frame, body),
    }
    frame.render_widget(footer(app, foot.width.into()), foot);
    if app.help {
        help(app, frame);
    }
}

/// The process: version, readiness, uptime, address and the time of the answer.
fn header(app: &App) -> Line<'static> {
    let strong = app.theme.style(Tone::Strong);
    let Some(status) = &app.status else {
        return Line::styled(format!("afterbay top  {}", app.address), strong);
    };
    let state = match (app.lost.is_some(), status["ready"] == true, list(status, "conditions").is_empty()) {
        (true, ..) => ("NO ANSWER", Tone::Bad),
        (false, false, _) => ("NOT READY", Tone::Bad),
        (false, true, false) => ("DEGRADED", Tone::Warn),
        (false, true, true) => ("READY", Tone::Good),
    };
    let up = long(status["uptime_seconds"].as_f64().unwrap_or_default());
    let time = app.clock.time(status["time"].as_str().unwrap_or_default());
    Line::from(vec![
        Span::styled(format!("afterbay {}", version(status)), strong),
        Span::styled(format!("  {}  ", state.0), app.theme.style(state.1)),
        Span::raw(format!("{time:.8}  pid {}  up {up}  {}", status["pid"], app.address)),
    ])
}

/// Why nobody answers, a new process, and the conditions: at most a quarter of the screen.
fn messages(app: &App, area: Rect, now: Instant) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let line = |text: String, tone: Tone| Line::styled(cut(&text, width), app.theme.style(tone));
    let mut lines = Vec::new();
    if let Some((since, why)) = &app.lost {
        let ago = long(now.duration_since(*since).as_secs_f64());
        let shown = if app.status.is_some() { ", the figures are older" } else { "" };
        lines.push(line(format!("no answer for {ago}{shown}: {why}"), Tone::Bad));
    }
    if let Some((_, words)) = &app.replaced {
        lines.push(line(words.clone(), Tone::Marked));
    }
    for condition in app.status.iter().flat_map(|status| list(status, "conditions")) {
        let is_bad = condition["severity"] == "not_ready";
        lines.push(line(sentence(condition), if is_bad { Tone::Bad } else { Tone::Warn }));
    }
    let most = usize::from(area.height / 4).max(1);
    if lines.len() > most {
        let more = lines.len() - most + 1;
        lines.truncate(most - 1);
        lines.push(line(format!("{more} messages do not fit; `curl …/v1/status` has all"), Tone::Warn));
    }
    lines
}

fn footer(app: &App, width: usize) -> Line<'static> {
    let faint = app.theme.style(Tone::Faint);
    if let Some(typed) = &app.requests.typed {
        let typed = format!("/{}_", safe(typed));
        // The end of a long filter is what is being typed.
        let over = typed.chars().count().saturating_sub(width);
        let typed: String = typed.chars().skip(over).collect();
        let hint =
            Span::styled("   RID state:live stream: finish: plugin: tenant: model: lora: session:", faint);
        return Line::from(vec![Span::styled(typed, app.theme.style(Tone::Strong)), hint]);
    }
    let keys = match (&app.life, app.view) {
        (Some(_), _) => "esc back  ↑↓ scroll  q quit  ? help",
        (None, REQUESTS) => "/ filter  enter open  ↑↓ select  ? help  esc no filter  1-5 views  q quit",
        _ => "1-5 views  ↑↓ select  / find a request  q quit  ? help",
    };
    Line::styled(keys, faint)
}

/// A table with the selected row in sight, and the selected row in full; for a stream with the curve of its tokens.
fn view(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let (width, rows) = (usize::from(area.width), app.rows(app.view));
    if rows.is_empty() {
        let text = match (app.view, &app.requests.page, &app.status) {
            (REQUESTS, Some(Err(why)), _) => safe(why),
            (REQUESTS, None, _) | (_, _, None) => "asking …".to_owned(),
            (REQUESTS, ..) => "no request matches".to_owned(),
            (STREAMS, ..) => "no stream: the scheduler has not yet named one".to_owned(),
            (view, ..) => format!("no {}", VIEWS[view].1.trim_end_matches('s')),
        };
        return frame.render_widget(Line::styled(text, app.theme.style(Tone::Faint)), area);
    }
    let selected = rows.get(app.selected());
    let facts = match app.view {
        REQUESTS => vec![Line::default(), page(app)],
        _ => {
            let facts = selected.map(|row| facts(row, width, app.theme, app.clock));
            std::iter::once(Line::default()).chain(facts.into_iter().flatten()).collect()
        }
    };
    // The list has at least half of the screen, if it needs so much.
    let most = (area.height / 2).max(area.height.saturating_sub(facts.len() as u16));
    let [list, text, curve] = Layout::vertical([
        Constraint::Length((rows.len() as u16).saturating_add(1).min(most)),
        Constraint::Length(facts.len() as u16),
        Constraint::Fill(1),
    ])
    .areas(area);
    let fits = usize::from(list.height).saturating_sub(1);
    let first = (app.selected() + 1).saturating_sub(fits);
    let mut lines =
        Grid::new(VIEWS[app.view].2, rows, app.clock).lines(width, app.theme, Some(app.selected()));
    lines.drain(1..=first.min(lines.len() - 1));
    frame.render_widget(Paragraph::new(lines), list);
    frame.render_widget(Paragraph::new(facts), text);
    if app.view == STREAMS {
        draw_curve(app, selected.and_then(|stream| stream["name"].as_str()), frame, curve);
    }
    app.page_rows = fits;
}

/// The place of the open page in the list of requests.
fn page(app: &App) -> Line<'static> {
    let Some(Ok(page)) = &app.requests.page else { return Line::default() };
    let filter = match app.requests.filter.as_str() {
        "" => String::new(),
        filter => format!("filter {}: ", safe(filter)),
    };
    let more = if page["next"].is_string() { "; more past the end" } else { "" };
    let kept = match (page["kept"].as_u64(), page["known"].as_u64()) {
        (Some(kept), Some(known)) if kept < known => {
            format!("; the last {} of {} are kept", crate::count(kept), crate::count(known))
        }
        _ => String::new(),
    };
    let (number, requests) = (app.requests.cursors.len() + 1, app.rows(REQUESTS).len());
    Line::styled(
        format!("{filter}page {number}, {requests} requests{more}{kept}"),
        app.theme.style(Tone::Faint),
    )
}

/// Draws the tokens a second, one column for each second, if there is room for two lines.
fn draw_curve(app: &App, stream: Option<&str>, frame: &mut Frame<'_>, area: Rect) {
    let status = app.status.as_ref().filter(|_| area.height > 2);
    let (Some(status), Some(stream)) = (status, stream) else { return };
    let [title, curve] = Layout::vertical([Constraint::Length(1), Constraint::Max(CURVE)]).areas(area);
    // A second of which nothing is known is no number.
    let points = list(&status["history"]["streams"][stream], poll::CURVE.0).iter();
    let points = points.map(|point| point.as_f64().map(|tokens| tokens.max(0.0) as u64));
    let known: Vec<Option<u64>> = points.skip_while(Option::is_none).collect();
    let shown = &known[known.len().saturating_sub(curve.width.into())..];
    let (span, most) = (shown.len(), crate::count(shown.iter().flatten().copied().max().unwrap_or(0)));
    let text = format!("tokens received a second, the last {span} s; the highest is {most}");
    frame.render_widget(Line::styled(text, app.theme.style(Tone::Faint)), title);
    frame.render_widget(
        Sparkline::default().data(shown.iter().copied()).style(app.theme.style(Tone::Marked)),
        curve,
    );
}

/// One request: its legs with their rows, who shared its batches, and its stages.
fn life(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let (theme, clock, width) = (app.theme, app.clock, usize::from(area.width));
    let Some(life) = &mut app.life else { return };
    let mut lines = vec![Line::styled(safe(&life.rid), theme.style(Tone::Strong))];
    match &life.answer {
        None => lines.push(Line::styled("asking …", theme.style(Tone::Faint))),
        Some(Err(why)) => lines.push(Line::styled(cut(&safe(why), width), theme.style(Tone::Bad))),
        Some(Ok(said)) => {
            let table = |lines: &mut Vec<Line<'static>>, title: &str, columns, rows: &[Value]| {
                if !rows.is_empty() {
                    lines
                        .extend([Line::default(), Line::styled(title.to_owned(), theme.style(Tone::Strong))]);
                    lines.extend(Grid::new(columns, rows, clock).lines(width, theme, None));
                }
            };
            let mut own = said.clone();
            let fields = own.as_object_mut();
            let is_own = |name: &String| matches!(name.as_str(), "ended" | "truncated");
            fields.into_iter().for_each(|fields| fields.retain(|name, _| is_own(name)));
            lines.extend(facts(&own, width, theme, clock));
            for leg in list(said, "legs") {
                let mut own = leg.clone();
                own.as_object_mut().map(|fields| fields.remove("rows_seen"));
                lines.push(Line::default());
                lines.extend(facts(&own, width, theme, clock));
                table(&mut lines, "rows", grid::ROWS, list(leg, "rows_seen"));
            }
            table(&mut lines, "who shared its batches", grid::NEIGHBOURS, list(said, "neighbours"));
            table(&mut lines, "earlier requests with this rid", grid::REQUESTS, list(said, "earlier"));
            table(&mut lines, "stages", grid::STAGES, list(said, "timeline"));
        }
    }
    let fits = usize::from(area.height);
    life.lines = lines.len();
    life.scroll = life.scroll.min(life.lines.saturating_sub(fits));
    lines.drain(..life.scroll);
    app.page_rows = fits;
    frame.render_widget(Paragraph::new(lines), area);
}

const HELP: [(&str, &str); 14] = [
    ("1 o", "streams: rates, first-token time, ledger, journal"),
    ("2 r", "requests: live and recent ones, newest first"),
    ("3 s", "sinks: backlog of each reader"),
    ("4 p", "plugins: state, cost, verdicts, faults"),
    ("5 c", "copies of the journal"),
    ("tab", "the next view"),
    ("↑↓ j k", "select or scroll; PgUp PgDn Home End"),
    ("enter", "open the selected request"),
    ("esc", "back; in the list: no filter"),
    ("/", "filter: RID-PREFIX state:live stream:NAME"),
    ("", "finish:REASON plugin:NAME tenant:NAME"),
    ("", "model:NAME lora:NAME session:ID"),
    ("ctrl-z", "suspend; fg continues"),
    ("q", "quit, as ctrl-c"),
];

fn help(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let wide = HELP.iter().map(|(_, text)| text.width()).max().unwrap_or(0) + 11;
    let (width, height) = (area.width.min(wide as u16), area.height.min(HELP.len() as u16 + 2));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    let strong: Style = app.theme.style(Tone::Strong);
    let lines =
        HELP.map(|(key, text)| Line::from(vec![Span::styled(format!(" {key:7} "), strong), Span::raw(text)]));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines.to_vec()).block(Block::bordered().title(" Keys ")), place);
}
