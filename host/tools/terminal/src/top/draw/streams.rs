//! The view of streams: a line for each, and the selected one in full with the curve of its tokens.

use crate as figures;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};

use crate::top::app::App;
use crate::top::draw::table;
use crate::top::facts::Facts;
use crate::top::grid::{Cell, cut};
use crate::top::sections::{self, state_tone};
use crate::top::status::{Copied, Quantiles, Status, Stream};
use crate::top::text::{counted, long, rate, safe, seconds};
use crate::top::theme::Tone;

/// The width of the labels of facts.
const LABEL: usize = 11;
/// The most lines of a curve.
const CURVE: u16 = 8;

pub(super) fn draw(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let empty = Status::default();
    let status = app.status.as_ref().unwrap_or(&empty);
    let rows = status.streams.len() as u16;
    let mut facts = Vec::new();
    if let Some(stream) = app.stream() {
        facts = facts_of(app, stream, area.width.into());
    }
    // The list of streams has at least a third of the screen, if it needs so much.
    let list_lines =
        (rows + 1).min((area.height / 3).max(area.height.saturating_sub(facts.len() as u16 + 1)));
    let [list, _, below] =
        Layout::vertical([Constraint::Length(list_lines), Constraint::Length(1), Constraint::Fill(1)])
            .areas(area);
    let empty_text =
        if app.status.is_none() { "asking …" } else { "no stream: the scheduler has not yet named one" };
    let fits = table(&sections::streams(status), Some(app.selected()), empty_text, app.theme, frame, list);
    let [text, curve] =
        Layout::vertical([Constraint::Length(facts.len() as u16), Constraint::Fill(1)]).areas(below);
    frame.render_widget(Paragraph::new(facts), text);
    if let Some(stream) = app.stream() {
        draw_curve(app, stream, frame, curve);
    }
    app.page_rows = fits;
}

/// Draws the tokens a second, one column for each second, if there is room for two lines.
fn draw_curve(app: &App, stream: &Stream, frame: &mut Frame<'_>, area: Rect) {
    let Some(history) = app.history.get(&stream.name).filter(|_| area.height > 2) else { return };
    let [title, curve] = Layout::vertical([Constraint::Length(1), Constraint::Max(CURVE)]).areas(area);
    let skipped = history.len().saturating_sub(curve.width.into());
    let shown: Vec<u64> = history.iter().skip(skipped).copied().collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    let span = shown.len();
    let text = format!("tokens received a second, the last {span} s; the highest is {}", rate(most as f64));
    let style = app.theme.style(Tone::Faint);
    frame.render_widget(Line::styled(cut(&text, title.width.into()), style), title);
    frame.render_widget(Sparkline::default().data(shown).style(app.theme.style(Tone::Marked)), curve);
}

fn facts_of(app: &App, stream: &Stream, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut facts = Facts { theme: app.theme, width, label_width: LABEL, lines: &mut lines };
    let rates = &stream.rates;
    facts.add(
        &safe(&stream.name),
        [
            match (stream.receiving, stream.senders) {
                (true, 0) => Cell::toned("no scheduler is connected", Tone::Warn),
                (true, senders) => {
                    Cell::toned(format!("receiving from {}", counted(senders, "scheduler")), Tone::Good)
                }
                (false, _) => Cell::toned("receiving is stopped", Tone::Bad),
            },
            counted(stream.requests_live, "live request").into(),
            format!("{} finished", figures::count(stream.requests_finished)).into(),
        ],
    );
    facts.add(
        "per second",
        [
            format!("{} frames", rate(rates.frames_received)).into(),
            format!("{} rows", rate(rates.rows_received)).into(),
            format!("{} tokens", rate(rates.tokens_received)).into(),
            format!("{} sent", rate(rates.tokens_forwarded)).into(),
            format!("{} rows joined", rate(rates.rows_joined)).into(),
        ],
    );
    let quantiles = |name: &str, of: &Option<Quantiles>| match of {
        Some(Quantiles { p50, p99 }) => {
            Cell::from(format!("{name} p50 {} p99 {}", seconds(*p50), seconds(*p99)))
        }
        None => Cell::toned(format!("{name} -"), Tone::Faint),
    };
    let first = format!("first token {}", safe(&stream.first_token_until));
    let first = quantiles(first.trim_end(), &stream.first_token_seconds);
    facts.add("latency", [first, quantiles("every frame", &stream.frame_seconds)]);
    facts.add("ledger", ledger(stream));
    facts.add("journal", journal(stream));
    let status = app.status.iter();
    let copies: Vec<Cell> = status.flat_map(|status| &status.copies).map(copy).collect();
    if !copies.is_empty() {
        facts.add("copies", copies);
    }
    facts.add("scheduler", scheduler(stream));
    facts.add(
        "sinks",
        stream.sinks.iter().map(|sink| {
            let waiting = match sink.waiting_rows {
                0 => String::new(),
                rows => format!(", {} for up to {}", counted(rows, "row"), seconds(sink.oldest_seconds)),
            };
            let text = format!("{} {}{waiting}", sink.name, sink.state.replace('_', " "));
            Cell::toned(text, state_tone(&sink.state))
        }),
    );
    let status = app.status.iter();
    let plugins = status.flat_map(|status| &status.plugins).filter(|plugin| plugin.stream == stream.name);
    let plugins: Vec<Cell> = plugins
        .map(|plugin| {
            let cost = plugin.ns_per_row.map(|ns| format!(", {ns:.0} ns a row")).unwrap_or_default();
            let faults = match plugin.faults.values().sum::<u64>() {
                0 => String::new(),
                faults => format!(", {}", counted(faults, "fault")),
            };
            let text = format!("{} {}{cost}{faults}", plugin.plugin, plugin.state);
            Cell::toned(text, state_tone(&plugin.state))
        })
        .collect();
    if !plugins.is_empty() {
        facts.add("plugins", plugins);
    }
    lines
}

fn ledger(stream: &Stream) -> Vec<Cell> {
    let ledger = &stream.ledger;
    let mut facts: Vec<Cell> = vec![
        format!("{} tokens received", figures::count(ledger.tokens_received)).into(),
        format!("{} forwarded", figures::count(ledger.tokens_forwarded)).into(),
    ];
    for (name, tokens) in [
        ("dropped", ledger.tokens_dropped),
        ("swallowed", ledger.tokens_swallowed),
        ("held", ledger.tokens_held),
        ("rows replaced", ledger.rows_replaced),
    ] {
        if tokens > 0 {
            facts.push(format!("{} {name}", figures::count(tokens)).into());
        }
    }
    facts.push(match (ledger.gaps, ledger.imbalances) {
        (0, 0) => Cell::toned("balanced", Tone::Good),
        (gaps, imbalances) => {
            Cell::toned(format!("{}, {}", counted(gaps, "gap"), counted(imbalances, "imbalance")), Tone::Bad)
        }
    });
    facts
}

fn journal(stream: &Stream) -> Vec<Cell> {
    let Some(journal) = &stream.journal else { return vec![Cell::toned("none", Tone::Faint)] };
    let mut facts = Vec::new();
    if journal.failing {
        facts.push(Cell::toned("the disk fails", Tone::Bad));
    }
    facts.push(match journal.bytes_max {
        Some(max) => format!("{} of {}", figures::bytes(journal.bytes), figures::bytes(max)).into(),
        None => figures::bytes(journal.bytes).into(),
    });
    facts.push(format!("{}/s", figures::bytes(journal.bytes_per_second.max(0.0) as u64)).into());
    if let Some(left) = journal.full_in_seconds {
        let tone = if left < 3600.0 { Tone::Warn } else { Tone::Plain };
        facts.push(Cell::toned(format!("full in {}", long(left)), tone));
    }
    if let Some(frame) = journal.frame {
        let durable =
            journal.durable_frame.map(|durable| format!(", durable to {}", figures::count(durable)));
        facts.push(format!("frame {}{}", figures::count(frame), durable.unwrap_or_default()).into());
    }
    facts
}

/// A copy of the journal of all streams. A failing one has its error among the conditions, at the top of the screen.
fn copy(copy: &Copied) -> Cell {
    let text = format!("{} {}, lag {}", copy.copy, copy.state, sections::copy_lag(copy));
    Cell::toned(text, state_tone(&copy.state))
}

fn scheduler(stream: &Stream) -> Vec<Cell> {
    let Some(load) = &stream.scheduler else { return vec![Cell::toned("no load signals", Tone::Faint)] };
    let mut facts = Vec::new();
    let number = |name: &str, value: Option<f64>| {
        value.map(|it| Cell::from(format!("{} {name}", figures::count(it.max(0.0).round() as u64))))
    };
    facts.extend(number("running", load.running));
    facts.extend(number("waiting", load.waiting));
    facts.extend(load.kv_usage.map(|usage| {
        let tone = if usage > 0.95 { Tone::Warn } else { Tone::Plain };
        Cell::toned(format!("KV cache {:.0} %", usage * 100.0), tone)
    }));
    if !load.fresh {
        facts.push(Cell::toned(format!("stale, {} old", seconds(load.age_seconds)), Tone::Warn));
    }
    facts
}
