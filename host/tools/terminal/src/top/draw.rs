//! From the state to a frame of the terminal, at any size.

mod life;
mod plugins;
mod streams;

use crate as figures;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use std::time::Instant;
use unicode_width::UnicodeWidthStr;

use crate::top::app::{App, View};
use crate::top::grid::{Cell, Grid, cut};
use crate::top::sections;
use crate::top::status::version;
use crate::top::text::{counted, long, safe};
use crate::top::theme::{Theme, Tone};

/// The least width of a terminal with the time in its first line.
const WIDTH_OF_TIME: usize = 60;

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
    frame.render_widget(header(app, head.width.into()), head);
    frame.render_widget(Paragraph::new(messages), says);
    frame.render_widget(tab_line(app, tabs.width.into()), tabs);
    match (app.life.is_some(), app.view) {
        (true, _) => life::draw(app, frame, body),
        (false, View::Streams) => streams::draw(app, frame, body),
        (false, View::Requests) => requests(app, frame, body),
        (false, View::Sinks) => sinks(app, frame, body),
        (false, View::Plugins) => plugins::draw(app, frame, body),
    }
    frame.render_widget(footer(app, foot.width.into()), foot);
    if app.help {
        help(app.theme, frame);
    }
}

/// The process: version, pid, uptime, readiness; at the right the time of the answer.
fn header(app: &App, width: usize) -> Line<'static> {
    let Some(status) = &app.status else {
        return Line::styled(
            cut(&format!("afterbay top  {}", app.address), width),
            app.theme.style(Tone::Strong),
        );
    };
    let state = match (app.lost.is_some(), status.ready, status.conditions.is_empty()) {
        (true, ..) => Cell::toned("NO ANSWER", Tone::Bad),
        (false, false, _) => Cell::toned("NOT READY", Tone::Bad),
        (false, true, false) => Cell::toned("DEGRADED", Tone::Warn),
        (false, true, true) => Cell::toned("READY", Tone::Good),
    };
    let parts = [
        Cell::toned(format!("afterbay {}", version(status)), Tone::Strong),
        state,
        format!("pid {}", status.pid).into(),
        format!("up {}", long(status.uptime_seconds)).into(),
        Cell::toned(app.address.clone(), Tone::Faint),
    ];
    let time = app.clock.time(Some(&status.time));
    // The time stands at the right edge, unless the terminal is tiny.
    let room = if width >= WIDTH_OF_TIME { width.saturating_sub(time.width() + 2) } else { width };
    let mut spans: Vec<Span<'static>> = Vec::new();
    let mut used = 0;
    for part in parts {
        let gap = if spans.is_empty() { 0 } else { 2 };
        if used + gap + part.text.width() > room {
            continue;
        }
        used += gap + part.text.width();
        spans.push(Span::raw(" ".repeat(gap)));
        spans.push(Span::styled(part.text, app.theme.style(part.tone)));
    }
    if room < width {
        spans.push(Span::raw(" ".repeat(width.saturating_sub(used + time.width()))));
        spans.push(Span::raw(time));
    }
    Line::from(spans)
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
    let conditions = app.status.iter().flat_map(|status| &status.conditions);
    lines.extend(conditions.map(|condition| {
        let is_bad = condition.severity == "not_ready";
        let text = match condition.text.as_str() {
            "" => safe(&condition.condition),
            text => safe(text),
        };
        let severity = if is_bad { "not ready" } else { "degraded" };
        line(format!("{severity}: {text}"), if is_bad { Tone::Bad } else { Tone::Warn })
    }));
    let most = usize::from(area.height / 4).max(1);
    if lines.len() > most {
        let more = lines.len() - most + 1;
        lines.truncate(most - 1);
        lines.push(line(format!("{more} messages do not fit; `curl …/v1/status` has all"), Tone::Warn));
    }
    lines
}

fn tab_line(app: &App, width: usize) -> Line<'static> {
    let mut spans = Vec::new();
    let mut used = 0;
    let wide: usize = View::ALL.iter().map(|(_, name)| name.len() + 4).sum();
    for (at, (view, name)) in View::ALL.into_iter().enumerate() {
        // A narrow terminal has the numbers and the open view's name.
        let text = match wide <= width || view == app.view {
            true => format!(" {} {name} ", at + 1),
            false => format!(" {} ", at + 1),
        };
        used += text.width();
        let style = if view == app.view { app.theme.selected() } else { Style::new() };
        spans.push(Span::styled(text, style));
    }
    let more = match (app.view, &app.life) {
        (_, Some(life)) => format!("  {}", safe(&life.rid)),
        (View::Requests, None) => match app.requests.filter.as_str() {
            "" => String::new(),
            filter => format!("  filter {}", safe(filter)),
        },
        _ => String::new(),
    };
    spans.push(Span::styled(cut(&more, width.saturating_sub(used)), app.theme.style(Tone::Strong)));
    Line::from(spans)
}

fn footer(app: &App, width: usize) -> Line<'static> {
    if let Some(typed) = &app.requests.typed {
        let mistake =
            app.requests.mistake.as_ref().map(|mistake| format!("   {mistake}")).unwrap_or_default();
        let mistake = safe(&mistake);
        let hint = match mistake.is_empty() {
            true => "   RID state:live stream: finish: plugin:".to_owned(),
            false => mistake,
        };
        let typed = format!("/{}_", safe(typed));
        // The end of a long filter is what is being typed.
        let over = typed.chars().count().saturating_sub(width);
        let typed: String = typed.chars().skip(over).collect();
        let tone = if app.requests.mistake.is_some() { Tone::Bad } else { Tone::Faint };
        let left = width.saturating_sub(typed.width());
        return Line::from(vec![
            Span::styled(typed, app.theme.style(Tone::Strong)),
            Span::styled(cut(&hint, left), app.theme.style(tone)),
        ]);
    }
    let keys: &[&str] = match (&app.life, app.view) {
        (Some(_), _) => &["esc back", "↑↓ scroll", "q quit", "? help"],
        (None, View::Requests) => {
            &["/ filter", "enter open", "↑↓ select", "esc no filter", "1-4 views", "q quit", "? help"]
        }
        _ => &["1-4 views", "↑↓ select", "/ find a request", "q quit", "? help"],
    };
    let mut text = String::new();
    for key in keys {
        let next = if text.is_empty() { (*key).to_owned() } else { format!("{text}  {key}") };
        if next.width() <= width {
            text = next;
        }
    }
    Line::styled(text, app.theme.style(Tone::Faint))
}

/// Draws a table with the selected row in sight. Returns the rows that fit.
fn table(
    grid: &Grid,
    selected: Option<usize>,
    empty: &str,
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
) -> usize {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    if grid.rows.is_empty() {
        let text = Line::styled(cut(empty, width), theme.style(Tone::Faint));
        frame.render_widget(Paragraph::new(text), area);
        return 0;
    }
    let fits = height.saturating_sub(1);
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(fits));
    let (head, rows) = grid.lines(width, theme, selected);
    let lines: Vec<Line<'_>> = std::iter::once(head).chain(rows.into_iter().skip(first).take(fits)).collect();
    frame.render_widget(Paragraph::new(lines), area);
    fits
}

fn requests(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let [list, foot] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    let (grid, empty, foot_text) = match &app.requests.page {
        None => (Grid::default(), "asking …".to_owned(), String::new()),
        Some(Err(why)) => (Grid::default(), safe(why), String::new()),
        Some(Ok(page)) => {
            let here = counted(page.requests.len() as u64, "request");
            let at = format!("page {}, {here}", app.requests.page_number());
            let more = if page.next.is_some() { "; more past the end" } else { "" };
            let kept = match (page.kept, page.known) {
                (Some(kept), Some(known)) if kept < known => {
                    format!("; the last {} of {} are kept", figures::count(kept), figures::count(known))
                }
                _ => String::new(),
            };
            let grid = sections::requests(&page.requests, app.clock);
            (grid, "no request matches".to_owned(), format!("{at}{more}{kept}"))
        }
    };
    let fits = table(&grid, Some(app.selected()), &empty, app.theme, frame, list);
    app.page_rows = fits;
    let style = app.theme.style(Tone::Faint);
    frame.render_widget(Line::styled(cut(&foot_text, foot.width.into()), style), foot);
}

fn sinks(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let empty = crate::top::status::Status::default();
    let status = app.status.as_ref().unwrap_or(&empty);
    let grid = sections::sinks(status);
    app.page_rows = table(&grid, Some(app.selected()), "no sink", app.theme, frame, area);
}

const HELP: [(&str, &str); 12] = [
    ("1 o", "streams: rates, first-token time, ledger, journal"),
    ("2 r", "requests: live and recent ones, newest first"),
    ("3 s", "sinks: backlog of each reader"),
    ("4 p", "plugins: state, cost, verdicts, faults"),
    ("tab", "the next view"),
    ("↑↓ j k", "select or scroll; PgUp PgDn Home End"),
    ("enter", "open the selected request"),
    ("esc", "back; in the list: no filter"),
    ("/", "filter: RID-PREFIX state:live stream:NAME"),
    ("", "finish:REASON plugin:NAME"),
    ("ctrl-z", "suspend; fg continues"),
    ("q", "quit, as ctrl-c"),
];

fn help(theme: Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let wide = HELP.iter().map(|(key, text)| key.width().max(7) + 2 + text.width()).max().unwrap_or(0) + 4;
    let width = area.width.min(wide as u16);
    let height = area.height.min(HELP.len() as u16 + 2);
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    let lines = HELP.map(|(key, text)| {
        Line::from(vec![Span::styled(format!(" {key:7} "), theme.style(Tone::Strong)), Span::raw(text)])
    });
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines.to_vec()).block(Block::bordered().title(" Keys ")), place);
}
