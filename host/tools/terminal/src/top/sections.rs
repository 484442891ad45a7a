//! The tables of a status: streams, sinks, plugins, requests. The screen and `--once` show the same ones.

use crate as figures;

use crate::top::clock::Clock;
use crate::top::grid::{Cell, Column, Grid};
use crate::top::status::{Copied, Plugin, Request, Sink, Status, Stream};
use crate::top::text::{long, rate, safe, seconds, short_count};
use crate::top::theme::Tone;

/// A line for each stream.
pub(crate) fn streams(status: &Status) -> Grid {
    let columns = vec![
        Column::text("STREAM", 0),
        Column::number("LIVE", 0),
        Column::number("FRAMES/S", 4),
        Column::number("TOKENS/S", 0),
        Column::number("SENT/S", 2),
        Column::number("JOINED/S", 5),
        Column::number("1ST P50", 6),
        Column::number("1ST P99", 0),
        Column::number("FRAME P99", 3),
        Column::word("SINKS", 1),
        Column::number("FULL IN", 7),
        Column::number("FINISHED", 8),
    ];
    let rows = status.streams.iter().map(|stream| {
        let first = stream.first_token_seconds.clone().unwrap_or_default();
        let frame = stream.frame_seconds.clone().unwrap_or_default();
        vec![
            Cell::toned(safe(&stream.name), if stream.receiving { Tone::Strong } else { Tone::Warn }),
            short_count(stream.requests_live).into(),
            rate(stream.rates.frames_received).into(),
            rate(stream.rates.tokens_received).into(),
            rate(stream.rates.tokens_forwarded).into(),
            rate(stream.rates.rows_joined).into(),
            seconds(first.p50).into(),
            seconds(first.p99).into(),
            seconds(frame.p99).into(),
            sinks_in_short(stream),
            full_in(stream),
            short_count(stream.requests_finished).into(),
        ]
    });
    Grid { columns, rows: rows.collect() }
}

/// `2 keeping up`, or the worst state of the sinks with its number.
fn sinks_in_short(stream: &Stream) -> Cell {
    let count = |state: &str| stream.sinks.iter().filter(|sink| sink.state == state).count();
    for state in ["away", "stalled", "behind"] {
        match count(state) {
            0 => {}
            some => return Cell::toned(format!("{some} {state}"), state_tone(state)),
        }
    }
    Cell::toned(format!("{} ok", stream.sinks.len()), Tone::Good)
}

fn full_in(stream: &Stream) -> Cell {
    match stream.journal.as_ref().and_then(|journal| journal.full_in_seconds) {
        Some(left) => Cell::toned(long(left), if left < 3600.0 { Tone::Warn } else { Tone::Plain }),
        None => "-".into(),
    }
}

/// A line for each sink of each stream.
pub(crate) fn sinks(status: &Status) -> Grid {
    let columns = vec![
        Column::text("STREAM", 3),
        Column::text("SINK", 0),
        Column::word("STATE", 0),
        Column::number("ROWS", 0),
        Column::number("TOKENS", 4),
        Column::number("OLDEST", 1),
        Column::number("LAG", 2),
        Column::number("SPILLED", 5),
        Column::number("ROWS/S", 1),
        Column::number("JOINED", 6),
    ];
    let rows =
        status.streams.iter().flat_map(|stream| stream.sinks.iter().map(|sink| sink_row(stream, sink)));
    Grid { columns, rows: rows.collect() }
}

fn sink_row(stream: &Stream, sink: &Sink) -> Vec<Cell> {
    vec![
        safe(&stream.name).into(),
        Cell::toned(safe(&sink.name), Tone::Strong),
        Cell::toned(safe(&sink.state.replace('_', " ")), state_tone(&sink.state)),
        short_count(sink.waiting_rows).into(),
        short_count(sink.waiting_tokens).into(),
        seconds(sink.oldest_seconds.filter(|_| sink.waiting_rows > 0)).into(),
        sink.lag_frames.map_or_else(|| "-".to_owned(), short_count).into(),
        Cell::toned(
            short_count(sink.spilled_frames),
            if sink.spilled_frames > 0 { Tone::Warn } else { Tone::Plain },
        ),
        rate(sink.rows_per_second).into(),
        short_count(sink.rows_joined).into(),
    ]
}

/// The tone of the state of a sink, a plugin, a request or a copy.
pub(crate) fn state_tone(state: &str) -> Tone {
    match state {
        "keeping_up" | "live" | "working" => Tone::Good,
        "behind" | "abandoned" => Tone::Warn,
        "stalled" | "away" | "down" | "quarantined" | "failing" => Tone::Bad,
        "shadow" => Tone::Marked,
        _ => Tone::Plain,
    }
}

/// A line for each copy of the journal.
pub(crate) fn copies(status: &Status) -> Grid {
    let columns = vec![
        Column::text("COPY", 0),
        Column::word("STATE", 0),
        Column::number("LAG", 0),
        Column::text("TO", 2),
        Column::text("ERROR", 1),
    ];
    let rows = status.copies.iter().map(|copy| {
        vec![
            Cell::toned(safe(&copy.copy), Tone::Strong),
            Cell::toned(safe(&copy.state), state_tone(&copy.state)),
            copy_lag(copy).into(),
            safe(&copy.to).into(),
            safe(copy.error.as_deref().unwrap_or("-")).into(),
        ]
    });
    Grid { columns, rows: rows.collect() }
}

/// The age of the oldest data that a copy lacks.
pub(crate) fn copy_lag(copy: &Copied) -> String {
    copy.lag_seconds.map_or_else(|| "-".to_owned(), long)
}

/// A line for each plugin of each stream.
pub(crate) fn plugins(status: &Status) -> Grid {
    let columns = vec![
        Column::text("STREAM", 4),
        Column::text("PLUGIN", 0),
        Column::text("COMPONENT", 3),
        Column::word("DIGEST", 6),
        Column::word("STATE", 0),
        Column::number("NS/ROW", 1),
        Column::number("ROWS", 0),
        Column::number("OPEN", 5),
        Column::number("MEMORY", 5),
        Column::text("VERDICTS", 2),
        Column::text("FAULTS", 0),
    ];
    Grid { columns, rows: status.plugins.iter().map(plugin_row).collect() }
}

fn plugin_row(plugin: &Plugin) -> Vec<Cell> {
    let state = match &plugin.not_ready {
        Some(_) => Cell::toned("not ready", Tone::Bad),
        None => Cell::toned(safe(&plugin.state), state_tone(&plugin.state)),
    };
    let faults = counts(&plugin.faults);
    vec![
        safe(&plugin.stream).into(),
        Cell::toned(safe(&plugin.plugin), Tone::Strong),
        safe(&format!("{} {}", plugin.component, plugin.version)).into(),
        safe(&plugin.digest.chars().take(12).collect::<String>()).into(),
        state,
        plugin.ns_per_row.map_or_else(|| "-".to_owned(), |ns| short_count(ns.round() as u64)).into(),
        short_count(plugin.rows).into(),
        short_count(plugin.requests_open).into(),
        figures::bytes(plugin.memory_bytes).into(),
        counts(&plugin.verdicts).into(),
        Cell::toned(faults, if plugin.faults.is_empty() { Tone::Plain } else { Tone::Warn }),
    ]
}

/// `drop 3, finish 1`.
pub(crate) fn counts<'a>(counts: impl IntoIterator<Item = (&'a String, &'a u64)>) -> String {
    let each: Vec<String> =
        counts.into_iter().map(|(name, count)| format!("{} {}", safe(name), short_count(*count))).collect();
    if each.is_empty() { "-".to_owned() } else { each.join(", ") }
}

/// A line for each request, as the server listed them.
pub(crate) fn requests(requests: &[Request], clock: Clock) -> Grid {
    let columns = vec![
        Column::text("RID", 0),
        Column::text("STREAM", 5),
        Column::word("STATE", 0),
        Column::number("TOKENS", 0),
        Column::number("SENT", 3),
        Column::word("BEGUN", 1),
        Column::number("TOOK", 0),
        Column::text("FINISH", 0),
        Column::text("PLUGINS", 4),
        Column::number("GAPS", 6),
    ];
    let rows = requests.iter().map(|request| {
        let took = clock.between(request.first_time.as_deref(), request.last_time.as_deref());
        vec![
            Cell::toned(safe(&request.rid), Tone::Strong),
            safe(&request.stream).into(),
            Cell::toned(safe(&request.state), request_tone(&request.state)),
            short_count(request.tokens_received).into(),
            short_count(request.tokens_forwarded).into(),
            clock.time(request.first_time.as_deref()).into(),
            took.map_or_else(|| "-".to_owned(), |took| format!("{took:.1} s")).into(),
            safe(request.finish_reason.as_deref().unwrap_or("-")).into(),
            if request.plugins.is_empty() { "-".to_owned() } else { safe(&request.plugins.join(", ")) }
                .into(),
            Cell::toned(request.gaps.to_string(), if request.gaps > 0 { Tone::Bad } else { Tone::Plain }),
        ]
    });
    Grid { columns, rows: rows.collect() }
}

/// The tone of the state of a request: a finished one is the usual case.
pub(crate) fn request_tone(state: &str) -> Tone {
    match state {
        "live" => Tone::Marked,
        other => state_tone(other),
    }
}
