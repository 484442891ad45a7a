//! `afterbay journal show RID`: prints a request, row by row.

pub(crate) mod text;

use crate::LoadConfig;
use crate::not_found::not_found;
use crate::place::Place;
use afterbay_config::{Config, Engine};
use afterbay_journal::reader::{
    Erasure, JournalRow, RequestFilter, RequestHistory, RequestInfo, RowDelivery, StreamReader,
};
use afterbay_journal::{Passage, PluginAction, PluginComponent, StoredReplacement, Verdict, stored_rid};
use afterbay_journal_view::asked;
use afterbay_journal_view::content::{ContentBounds, ContentReader, TokenFacts};
use afterbay_journal_view::ending::{DETOKENIZER, LegEnd, SCHEDULER, TokenizerHint};
use afterbay_journal_view::json::{state, whole};
use afterbay_journal_view::leg_view::LegView;
use afterbay_journal_view::legs::{self, Known, Leg, Request};
use afterbay_journal_view::local_time;
use afterbay_journal_view::request_end::RequestEnd;
use afterbay_journal_view::wording::{counted, short, verdict};
use afterbay_terminal::{self as screen, Table};
use afterbay_text::TokenBytes;
use afterbay_wire::Layouts;
use anyhow::Context as _;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Most characters of a row's text in a table; JSON has all.
const CHARS_SHOWN: usize = 32;
/// Most characters of a prompt in a table; JSON has all.
const PROMPT_CHARS_SHOWN: usize = 2000;
/// The index of the text's column.
const TEXT_AT: usize = 5;

/// Show what a request asked for, each row of it, and who ended it
///
/// Above the rows: the parameters of the request and its prompt, as text if the tokenizer is known, if the connector sends the records of
/// requests.
/// For each row: the time, the ids, the verdicts of plugins, the time until the row was sent, and the readers that took the row,
/// each with the time that it then needed. Below the rows: who ended the request, what the reader got, and what the scheduler
/// sent afterwards. If several requests used the rid, each is shown. The
/// client's id finds each sample of its request: chatcmpl-gw-7 or gw-7 finds 0_chatcmpl-gw-7-1a2b3c4d. The
/// beginning of a rid is enough if no other rid begins with it. If the request is on two streams (the scheduler's output and
/// the detokenizer's), both are shown, with times since the first row of the first stream; --stream selects one.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal show 5b0c1f0a --config afterbay.toml\n  afterbay journal show 5b0c1f0a --json | jq .ended"
)]
pub(crate) struct Args {
    /// The rid of the request, the client's id, or the beginning of the rid
    rid: String,
    #[command(flatten)]
    place: Place,
    /// The model's tokenizer.json or its directory, for the text of rows that the reader did not get; by default the one that
    /// the configuration names for a sink of the stream
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Print all ids of the prompt, not its text
    #[arg(long)]
    ids: bool,
    /// Print the text that the reader got, whole, and what was received where it differs, in place of the rows. With --json:
    /// `sent`, `received` and `differences`, an object for each stream. Without a tokenizer: ids
    #[arg(long, conflicts_with = "ids")]
    text: bool,
    /// Print one JSON object for each request: the fields of `ls --json`, what the scheduler was asked for and the prompt in
    /// `record`, each row in `rows_seen`, first stream first, and the end in `ended`
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let selected = args.place.select(load)?;
    let known = known(&selected.streams, &args.rid)?;
    let followers: Vec<String> =
        known.iter().filter(|(_, after, _)| !after.is_empty()).map(|(name, ..)| name.clone()).collect();
    let requests = legs::join_instances(legs::join(known), &selected.streams)?;
    if requests.is_empty() {
        return Err(not_found(&selected, &args.rid));
    }
    let layouts = selected.streams.iter().map(|stream| Ok(Layouts::of_text(&stream.layout()?)));
    let layouts: Vec<Layouts> = layouts.collect::<anyhow::Result<_>>()?;
    let readers: Vec<ContentReader<'_>> = selected
        .streams
        .iter()
        .zip(&layouts)
        .map(|(stream, layouts)| ContentReader::new(stream, layouts))
        .collect();
    let mut tokenizers =
        Tokenizers { flag: args.tokenizer, config: selected.config.as_ref(), loaded: Vec::new() };
    for request in &requests {
        let (mut shown, mut outputs) = (Vec::new(), Vec::new());
        for Leg { stream, of, .. } in &request.0 {
            let Some(reader) = readers.iter().find(|reader| reader.name() == stream) else { continue };
            let has_ids = args.text || of.request.ended_early || of.record.is_some() && !args.ids;
            let tokens = match if has_ids { tokenizers.of(stream) } else { Ok(None) } {
                // The ids are shown in place of their text.
                Err(error) if tokenizers.flag.is_none() => {
                    screen::complain(format!("{error:#}"));
                    None
                }
                tokens => tokens?,
            };
            let sender = if followers.contains(stream) { DETOKENIZER } else { SCHEDULER };
            let view = LegView::read(reader, (stream, of), sender, tokens, ContentBounds::NONE);
            let output = args.text.then(|| view.output(reader));
            shown.push(view);
            outputs.extend(output);
        }
        match (args.text, args.json) {
            (true, true) => shown.iter().zip(&outputs).for_each(|leg| screen::say_json(&text::json(leg))),
            (true, false) => text::print(request, &shown.iter().zip(&outputs).collect::<Vec<_>>())?,
            (false, true) => screen::say_json(&json(request, &shown)),
            (false, false) => print(request, &shown, args.ids)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The requests with this rid, or else those that their client knows by this id, or else those whose rid is the only one that begins
/// with it. Only a search for more than a rid reads the summary of every segment.
fn known(streams: &[StreamReader], rid: &str) -> anyhow::Result<Known<RequestHistory>> {
    let with_after = |stream: &StreamReader, lives| -> anyhow::Result<_> {
        Ok((stream.name().to_owned(), legs::after(stream, streams)?, lives))
    };
    let mut known: Known<RequestHistory> = Vec::new();
    let stored = stored_rid(rid.as_bytes());
    for stream in streams {
        let lives = stream.lives(&stored)?;
        if !lives.is_empty() {
            known.push(with_after(stream, lives)?);
        }
    }
    if known.is_empty() {
        for stream in streams {
            for whole in with_id(stream, rid)? {
                known.push(with_after(stream, stream.lives(&whole)?)?);
            }
        }
    }
    if known.is_empty() {
        for stream in streams {
            if let Some(whole) = stream.whole_rid(rid)? {
                known.push(with_after(stream, stream.lives(&whole)?)?);
            }
        }
    }
    Ok(known)
}

/// The rids that were made of this id.
fn with_id(stream: &StreamReader, id: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut rids = BTreeSet::new();
    for request in stream.requests(RequestFilter::default())? {
        let rid = request?.rid;
        // The journal does not say which engine a stream has.
        if Engine::WORDS.iter().any(|(_, engine)| engine.has_id(&rid, id)) {
            rids.insert(rid);
        }
    }
    Ok(rids)
}

/// The tokenizer of each stream: --tokenizer, or the one that the configuration names for a sink of the stream.
struct Tokenizers<'a> {
    flag: Option<PathBuf>,
    config: Option<&'a Config>,
    loaded: Vec<(PathBuf, TokenBytes)>,
}

impl Tokenizers<'_> {
    fn of(&mut self, stream: &str) -> anyhow::Result<Option<TokenBytes>> {
        let streams = self.config.into_iter().flat_map(|config| &config.streams);
        let mut sinks = streams.filter(|it| *it.name == *stream).flat_map(|it| &it.sinks);
        let Some(path) = self.flag.clone().or_else(|| sinks.find_map(|sink| sink.tokenizer.clone())) else {
            return Ok(None);
        };
        if let Some((_, tokens)) = self.loaded.iter().find(|(known, _)| *known == path) {
            return Ok(Some(tokens.clone()));
        }
        let tokens = TokenBytes::load(&path).with_context(|| "tokenizer".to_owned())?;
        self.loaded.push((path, tokens.clone()));
        Ok(Some(tokens))
    }
}

/// The fields of `ls --json`, each row, and the end of the request.
fn json(request: &Request<RequestHistory>, shown: &[LegView<'_>]) -> serde_json::Value {
    let mut whole = whole(request);
    whole["record"] = shown.iter().map(|leg| leg.record_json(usize::MAX)).find(|it| !it.is_null()).into();
    whole["rows_seen"] = shown.iter().flat_map(|leg| leg.rows(usize::MAX)).collect();
    whole["ended"] = RequestEnd::of(&ends(request, shown)).map(|end| end.json(TokenizerHint::Option)).into();
    whole
}

/// The ends of the legs. On several instances, the last one has the outcome.
fn ends<'v, 'a>(request: &Request<RequestHistory>, shown: &'v [LegView<'a>]) -> Vec<&'v LegEnd<'a>> {
    let last = request.by_instance().next_back().unwrap_or_default();
    let is_last = |leg: &&LegView<'_>| last.iter().any(|it| it.stream == leg.stream);
    shown.iter().filter(is_last).map(|leg| &leg.end).collect()
}

fn print(request: &Request<RequestHistory>, shown: &[LegView<'_>], all_ids: bool) -> std::io::Result<()> {
    // Times of all legs are since the first row of the first leg.
    let begun = request.first().of.rows.first().map_or(0, |row| row.received_unix_ns);
    headline(request);
    for leg in shown {
        print_leg(leg, begun, all_ids)?;
        screen::say("");
    }
    if let Some(end) = RequestEnd::of(&ends(request, shown)) {
        end.sentences(TokenizerHint::Option).iter().for_each(|sentence| screen::say_wrapped(sentence, 2));
        screen::say("");
    }
    Ok(())
}

/// Prints the state of a request with several legs as a whole.
fn headline(request: &Request<RequestHistory>) {
    let mut instances = request.by_instance().filter_map(|legs| legs.first());
    if let (Some(first), Some(last)) = (instances.next(), instances.next_back()) {
        let begun = |leg: &Leg<RequestHistory>| leg.of.request.first_unix_ns;
        let line = format!(
            "{}  {}, on {} instances: the first row on {}, on {} {:.3} s later",
            first.of.request.rid,
            screen::state(state(request.state())),
            request.by_instance().count(),
            first.stream,
            last.stream,
            begun(last).saturating_sub(begun(first)) as f64 / 1e9,
        );
        screen::say_wrapped(&line, 2);
        return;
    }
    let (first, Some(next)) = (&request.first().of.request, request.next()) else { return };
    let later = |of: fn(&RequestInfo) -> u64| of(&next.of.request).saturating_sub(of(first)) as f64 / 1e9;
    let line = format!(
        "{}  {}, 2 legs: the first row on {} was received {:.3} s after the first row on {}, the last row {:.3} s after the last",
        first.rid,
        screen::state(state(request.state())),
        next.stream,
        later(|info| info.first_unix_ns),
        request.first().stream,
        later(|info| info.last_unix_ns),
    );
    screen::say_wrapped(&line, 2);
}

/// The erasure of a request in words.
pub(crate) fn erased_line(erased: &Erasure) -> String {
    format!("erased {} by {}", local_time(erased.unix_ns), erased.by)
}

/// Prints the totals of a leg in a line, and its erasure.
fn print_head(leg: &LegView<'_>) {
    let LegView { stream, life, end, .. } = leg;
    let request = &life.request;
    let line = format!(
        "{}  request {} of stream {stream}, {}{}",
        request.rid,
        request.number.0,
        screen::state(state(request.state)),
        end.reasons(),
    );
    screen::say_wrapped(&line, 2);
    if let Some(erased) = &request.erased {
        screen::say(screen::marked(erased_line(erased)));
    }
}

fn print_leg(leg: &LegView<'_>, begun: u64, all_ids: bool) -> std::io::Result<()> {
    let LegView { life, contents, .. } = leg;
    let request = &life.request;
    print_head(leg);
    if !request.attributes.is_empty() {
        let attributes = request.attributes.iter().map(|(name, value)| format!("{name}={value}"));
        let line = format!("attributes: {}", attributes.collect::<Vec<_>>().join(", "));
        screen::say_wrapped(&line, 2);
    }
    print_record(leg, all_ids);
    let plugins = life.plugins();
    if !plugins.is_empty() {
        let line = format!("plugins: {}", plugins.into_iter().map(component).collect::<Vec<_>>().join(", "));
        screen::say_wrapped(&line, 2);
    }
    let scheduler = match request.completion_tokens {
        Some(counted) if counted == request.received => {
            screen::good(format!(", the scheduler counted {counted}"))
        }
        Some(counted) => screen::bad(format!(", the scheduler counted {counted}")),
        None => String::new(),
    };
    let line = format!(
        "{}, {} received{scheduler}, {} sent, {} replaced, {} dropped",
        counted(request.rows, "row"),
        counted(request.received, "token"),
        request.forwarded,
        request.replaced,
        request.dropped
    );
    screen::say_wrapped(&line, 2);
    if let Some(facts) = TokenFacts::phrase(contents.iter().flatten()) {
        screen::say_wrapped(format!("the engine says: {facts}"), 2);
    }
    let has_text = contents.iter().flatten().any(|content| content.text.is_some());
    let mut heads = vec!["WHEN", "FRAME", "ROW", "TOKENS", "IDS", "OUTCOME", "SENT", "TAKEN BY"];
    if has_text {
        heads.insert(TEXT_AT, "TEXT");
    }
    let mut table = Table::new(&heads);
    for (row, content) in life.rows.iter().zip(contents) {
        if let Some(gap) = &row.gap {
            let text =
                format!("gap: the scheduler counted {} tokens, {} were received", gap.got, gap.expected);
            let mut line = vec![String::new(); heads.len() - 3];
            line.push(screen::bad(text));
            table.row(line);
        }
        let mut line = vec![
            when(row.received_unix_ns, begun),
            row.frame.to_string(),
            row.row.to_string(),
            row.tokens.to_string(),
            match content {
                Ok(content) => short(&content.ids),
                Err(why) => screen::faint(why.words().to_owned()),
            },
            outcome(row),
            sent(row),
            taken_by(row),
        ];
        if has_text {
            let text = content.as_ref().ok().and_then(|content| content.text.as_deref());
            line.insert(TEXT_AT, text.map_or_else(String::new, short_text));
        }
        table.row(line);
    }
    table.print()
}

/// Prints what the scheduler was asked for.
fn print_record(leg: &LegView<'_>, all_ids: bool) {
    let request = &leg.life.request;
    let record = match &leg.record {
        Some(Ok(record)) => record,
        Some(Err(why)) => {
            return screen::say(screen::faint(format!("the request's record: {}", why.words())));
        }
        None => return,
    };
    let arrived = record.arrived_unix_ns.unwrap_or(request.record_unix_ns);
    let tokens = record
        .prompt_tokens
        .map_or_else(String::new, |tokens| format!(" with a prompt of {}", counted(tokens, "token")));
    let first = match request.rows {
        0 => ", no row yet".to_owned(),
        _ => format!(", the first row {}", later(request.first_unix_ns, arrived)),
    };
    screen::say_wrapped(format!("arrived {}{tokens}{first}", local_time(arrived)), 2);
    for (name, value) in asked::fields(record) {
        screen::say_wrapped(format!("{name}: {value}"), 2);
    }
    let prompt = if all_ids { None } else { leg.prompt() };
    let line = match (prompt, asked::ids(record)) {
        (Some(text), _) => {
            let more = if text.chars().nth(PROMPT_CHARS_SHOWN).is_some() { " …" } else { "" };
            format!("prompt: {:?}{more}", text.chars().take(PROMPT_CHARS_SHOWN).collect::<String>())
        }
        (None, Some(ids)) if all_ids => {
            format!("prompt ids: {}", ids.map(|id| id.to_string()).collect::<Vec<_>>().join(" "))
        }
        (None, Some(ids)) => format!("prompt ids: {}", short(&ids.collect::<Vec<_>>())),
        (None, None) => return,
    };
    screen::say_wrapped(line, 2);
}

/// A component as `NAME VERSION (sha256 DIGITS)`, with 12 digits.
fn component(component: &PluginComponent) -> String {
    let PluginComponent { plugin, version, .. } = component;
    let version = if version.is_empty() { String::new() } else { format!(" {version}") };
    format!("{plugin}{version} (sha256 {:.12})", component.sha256_text())
}

/// The time from the row's receipt until the row was sent. Empty for a row that was not sent.
fn sent(row: &JournalRow) -> String {
    let times = row.deliveries.iter().map(|delivery| delivery.sent_unix_ns);
    times.filter(|sent| *sent > 0).max().map_or_else(String::new, |sent| later(sent, row.received_unix_ns))
}

/// The readers that took the row, each with the time from the sending of the row if the journal has both times.
fn taken_by(row: &JournalRow) -> String {
    let reader = |name: &str| {
        let known = |it: &&RowDelivery| it.sink == name && it.sent_unix_ns > 0 && it.taken_unix_ns > 0;
        match row.deliveries.iter().find(known) {
            Some(delivery) => format!("{name} {}", later(delivery.taken_unix_ns, delivery.sent_unix_ns)),
            None => name.to_owned(),
        }
    };
    row.taken_by().into_iter().map(reader).collect::<Vec<_>>().join(", ")
}

/// The time between two times, in milliseconds.
fn later(unix_ns: u64, since: u64) -> String {
    format!("+{:.1} ms", unix_ns.saturating_sub(since) as f64 / 1e6)
}

/// The time of the first row, and for later rows the seconds since.
fn when(unix_ns: u64, begun: u64) -> String {
    match unix_ns.checked_sub(begun) {
        Some(0) | None => local_time(unix_ns),
        Some(after) => format!("+{:.3} s", after as f64 / 1e9),
    }
}

/// A text in quotes, which show white space, cut to [`CHARS_SHOWN`].
fn short_text(text: &str) -> String {
    let mut shown = format!("{:?}", text.chars().take(CHARS_SHOWN).collect::<String>());
    if text.chars().nth(CHARS_SHOWN).is_some() {
        shown.push_str(" …");
    }
    shown
}

fn outcome(row: &JournalRow) -> String {
    let mut parts: Vec<String> = row.actions.iter().map(action).collect();
    if parts.is_empty() {
        parts.push(match &row.passage {
            Passage::Unchanged => "sent unchanged".to_owned(),
            Passage::Changed => "sent".to_owned(),
            Passage::Dropped => "dropped".to_owned(),
            Passage::Barrier(kind) | Passage::NotUnderstood(kind) => format!("sent unchanged: {kind}"),
        });
    }
    if let Some(finish) = &row.finish {
        parts.push(format!("finish: {}", finish.reason));
    }
    parts.join("; ")
}

fn action(action: &PluginAction<'_>) -> String {
    let PluginAction { plugin, text, .. } = action;
    match action.verdict {
        Verdict::Hold => format!("{plugin}: held, {text}"),
        Verdict::Release => {
            let rows = counted(action.released().unwrap_or(0) as u64, "held row");
            let why = if text.is_empty() { String::new() } else { format!(" unchanged, {text}") };
            format!("{plugin}: released with {rows}{why}")
        }
        Verdict::Replace => match action.replaced() {
            Some(StoredReplacement::Row { ids, text }) => {
                let ids = if ids.is_empty() { "no ids".to_owned() } else { short(ids) };
                let text = text.as_ref().map(|text| format!(", {text:?}")).unwrap_or_default();
                format!("{plugin}: replaced by {ids}{text}")
            }
            Some(StoredReplacement::Cumulative) | None => format!("{plugin}: replaced, {text}"),
        },
        Verdict::Drop if action.is_swallowed() => format!("{plugin}: dropped, the request had ended"),
        Verdict::Drop => format!("{plugin}: dropped, {text:?}"),
        Verdict::Finish => format!("{plugin}: finished, {text:?}"),
        Verdict::Length => format!("{plugin}: finished, as at the token limit"),
        other => format!("{plugin}: {} {text:?}", verdict(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::FrameNo;

    #[test]
    fn a_row_shows_when_it_was_sent_and_taken_and_a_journal_of_an_earlier_build_does_not() {
        let delivery = |sent_unix_ns, taken_unix_ns| RowDelivery {
            sink: "reader".into(),
            sequence: 1,
            sent_unix_ns,
            taken: true,
            taken_unix_ns,
        };
        let row = |deliveries| JournalRow {
            frame: FrameNo(1),
            position: None,
            changed: None,
            received_unix_ns: 1_000_000,
            row: 0,
            tokens: 1,
            forwarded: 1,
            passage: Passage::Unchanged,
            finish: None,
            gap: None,
            actions: Vec::new(),
            plugins: Vec::new(),
            deliveries,
        };
        let with_times = row(vec![delivery(1_200_000, 4_500_000)]);
        assert_eq!((&*sent(&with_times), &*taken_by(&with_times)), ("+0.2 ms", "reader +3.3 ms"));
        let without_times = row(vec![delivery(0, 0)]);
        assert_eq!((&*sent(&without_times), &*taken_by(&without_times)), ("", "reader"));
    }
}
