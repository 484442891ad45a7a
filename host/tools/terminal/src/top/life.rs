//! One request as texts and tables: its stages, its rows, and who shared its batches.

use ratatui::text::Line;
use serde::Deserialize as _;
use serde_json::Value;

use crate::top::clock::Clock;
use crate::top::facts::Facts;
use crate::top::grid::{Cell, Column, Grid, cut};
use crate::top::sections::request_tone;
use crate::top::status::Request;
use crate::top::text::{counted, safe, short_count};
use crate::top::theme::{Theme, Tone};

/// The width of the labels of facts.
const LABEL: usize = 11;
/// Most ids of a row that are shown.
const IDS: usize = 8;
/// Most requests that shared batches.
const NEIGHBOURS: usize = 20;

/// The life of a request as texts and tables without a width.
#[derive(Clone, Debug, Default)]
pub(crate) struct LifeText {
    facts: Vec<(&'static str, Vec<Cell>)>,
    stages: Grid,
    legs: Vec<(String, Grid)>,
    neighbours: Grid,
}

impl LifeText {
    /// The texts of an answer to `GET /v1/requests/RID`.
    pub(crate) fn new(answer: &Value, clock: Clock) -> LifeText {
        let legs = list(&answer["legs"]);
        let begun = legs.iter().find_map(|leg| leg["first_time"].as_str());
        let mut text = LifeText::default();
        if answer["truncated"].as_bool() == Some(true) {
            text.facts.push(("", vec![Cell::toned("the request has more rows than are shown", Tone::Warn)]));
        }
        for leg in legs {
            let request = Request::deserialize(leg).unwrap_or_default();
            text.facts.push(("leg", leg_facts(&request, clock)));
            let title = format!("rows on {}", safe(&request.stream));
            text.legs.push((title, row_grid(list(&leg["rows_seen"]), begun, clock)));
        }
        let sentences = list(&answer["ended"]["sentences"]).iter().filter_map(Value::as_str);
        text.facts.extend(sentences.map(|sentence| ("", vec![Cell::from(sentence)])));
        let earlier = list(&answer["earlier"]).len();
        if earlier > 0 {
            let words = format!(
                "{} with this rid: `afterbay journal show`",
                counted(earlier as u64, "earlier request")
            );
            text.facts.push(("", vec![Cell::toned(words, Tone::Warn)]));
        }
        text.stages = stage_grid(list(&answer["timeline"]), begun, clock);
        text.neighbours = neighbour_grid(list(&answer["neighbours"]));
        text
    }

    /// The lines of the life on a screen of this width.
    pub(crate) fn lines(&self, width: usize, theme: Theme) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let mut facts = Facts { theme, width, label_width: LABEL, lines: &mut lines };
        for (label, cells) in &self.facts {
            facts.add(label, cells.iter().cloned());
        }
        let tables = [("stages", &self.stages)].into_iter();
        let tables = tables.chain(self.legs.iter().map(|(title, grid)| (title.as_str(), grid)));
        for (title, grid) in tables.chain([("who shared its batches", &self.neighbours)]) {
            if grid.rows.is_empty() {
                continue;
            }
            lines.push(Line::default());
            lines.push(Line::styled(cut(title, width), theme.style(Tone::Strong)));
            let (head, rows) = grid.lines(width, theme, None);
            lines.push(head);
            lines.extend(rows);
        }
        lines
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn leg_facts(request: &Request, clock: Clock) -> Vec<Cell> {
    let by_scheduler = match request.completion_tokens {
        Some(counted) if counted == request.tokens_received => {
            Cell::toned(format!("the scheduler counted {counted}"), Tone::Good)
        }
        Some(counted) => Cell::toned(format!("the scheduler counted {counted}"), Tone::Bad),
        None => Cell::toned("no count of the scheduler yet", Tone::Faint),
    };
    let mut facts = vec![
        Cell::toned(&request.stream, Tone::Strong),
        Cell::toned(&request.state, request_tone(&request.state)),
        clock.date(request.first_time.as_deref().unwrap_or("-")).into(),
        counted(request.rows, "row").into(),
        format!("{} received", counted(request.tokens_received, "token")).into(),
        by_scheduler,
        format!("{} forwarded", request.tokens_forwarded).into(),
    ];
    for (name, tokens) in [("dropped", request.tokens_dropped), ("replaced", request.tokens_replaced)] {
        if tokens > 0 {
            facts.push(Cell::toned(format!("{tokens} {name}"), Tone::Warn));
        }
    }
    if request.gaps > 0 {
        facts.push(Cell::toned(counted(request.gaps, "gap"), Tone::Bad));
    }
    if let Some(reason) = &request.finish_reason {
        facts.push(format!("finish {reason}").into());
    }
    facts
}

/// The frames that each stage saw, and when. Plugins have the time of receipt. The journal has no time for itself.
fn stage_grid(timeline: &[Value], begun: Option<&str>, clock: Clock) -> Grid {
    #[derive(Default)]
    struct Stage {
        name: String,
        frames: Option<(u64, u64)>,
        times: Option<(f64, f64)>,
        count: u64,
    }
    let mut stages: Vec<Stage> = Vec::new();
    for entry in timeline {
        let words = ["stage", "plugin", "sink"].into_iter().filter_map(|field| entry[field].as_str());
        let name = words.collect::<Vec<_>>().join(" ");
        let at = match stages.iter().position(|stage| stage.name == name) {
            Some(at) => at,
            None => {
                stages.push(Stage { name, ..Stage::default() });
                stages.len() - 1
            }
        };
        let stage = &mut stages[at];
        stage.count += 1;
        if let Some(frame) = entry["frame"].as_u64() {
            stage.frames = Some((stage.frames.map_or(frame, |(first, _)| first), frame));
        }
        if let Some(time) = clock.between(begun, entry["time"].as_str()) {
            stage.times = Some((stage.times.map_or(time, |(first, _)| first), time));
        }
    }
    let rows = stages.into_iter().map(|stage| {
        let frames = stage.frames.map(|(first, last)| format!("{first} to {last}"));
        let times = stage.times.map(|(first, last)| format!("+{first:.3} s to +{last:.3} s"));
        vec![
            Cell::from(&stage.name),
            stage.count.to_string().into(),
            frames.unwrap_or_default().into(),
            times.unwrap_or_default().into(),
        ]
    });
    let columns = vec![
        Column::text("STAGE", 0),
        Column::number("COUNT", 0),
        Column::word("FRAMES", 1),
        Column::word("WHEN", 2),
    ];
    Grid { columns, rows: rows.collect() }
}

fn row_grid(rows: &[Value], begun: Option<&str>, clock: Clock) -> Grid {
    let columns = vec![
        Column::number("WHEN", 0),
        Column::number("FRAME", 3),
        Column::number("TOKENS", 0),
        Column::text("CONTENT", 1),
        Column::text("OUTCOME", 0),
        Column::text("TAKEN BY", 2),
    ];
    let mut cells = Vec::new();
    for row in rows {
        if let Some(gap) = row["gap"].as_object() {
            let number = |name: &str| gap.get(name).map(Value::to_string).unwrap_or_default();
            let text = format!("gap: {} of {} tokens", number("expected"), number("got"));
            let blank = || Cell::from("");
            cells.push(vec![blank(), blank(), blank(), blank(), Cell::toned(text, Tone::Bad), blank()]);
        }
        let when = clock.between(begun, row["time"].as_str());
        cells.push(vec![
            when.map_or_else(|| "-".to_owned(), |at| format!("+{at:.3} s")).into(),
            row["frame"].as_u64().map(short_count).unwrap_or_default().into(),
            row["tokens"].as_u64().map(short_count).unwrap_or_default().into(),
            content(row),
            outcome(row),
            list(&row["taken_by"]).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ").into(),
        ]);
    }
    Grid { columns, rows: cells }
}

/// The text of a row in quotes, which show white space; without a text its ids.
fn content(row: &Value) -> Cell {
    if let Some(text) = row["text"].as_str() {
        return format!("\"{text}\"").into();
    }
    if let Some(missing) = row["missing"].as_str() {
        return Cell::toned(missing, Tone::Faint);
    }
    let ids = list(&row["ids"]);
    let shown: Vec<String> = ids.iter().take(IDS).map(Value::to_string).collect();
    let more = if ids.len() > IDS { " …" } else { "" };
    Cell::from(format!("{}{more}", shown.join(" ")))
}

fn outcome(row: &Value) -> Cell {
    let actions = list(&row["actions"]);
    let mut parts: Vec<String> = actions
        .iter()
        .map(|action| {
            let text = action["text"].as_str().filter(|text| !text.is_empty());
            let text = text.map(|text| format!(" {text:?}")).unwrap_or_default();
            let name = |field: &str| action[field].as_str().unwrap_or_default().to_owned();
            format!("{}: {}{text}", name("plugin"), name("verdict"))
        })
        .collect();
    if parts.is_empty() {
        parts.push(row["passage"].as_str().unwrap_or("sent").to_owned());
    }
    if let Some(reason) = row["finish_reason"].as_str() {
        parts.push(format!("finish: {reason}"));
    }
    Cell::toned(parts.join("; "), if actions.is_empty() { Tone::Plain } else { Tone::Marked })
}

fn neighbour_grid(neighbours: &[Value]) -> Grid {
    let columns = vec![Column::text("RID", 0), Column::number("SHARED BATCHES", 0)];
    let rows = neighbours.iter().take(NEIGHBOURS).map(|neighbour| {
        let batches = neighbour["batches"].as_u64().map(short_count).unwrap_or_default();
        vec![neighbour["rid"].as_str().unwrap_or_default().into(), batches.into()]
    });
    Grid { columns, rows: rows.collect() }
}
