//! `afterbay usage`: sums of tokens from the records and the journal, compared with the scheduler's own counts.

use crate::LoadConfig;
use crate::ended_requests::each_ended;
use crate::place::{Place, Selected};
use afterbay_config::Usage;
use afterbay_journal::reader::StreamReader;
use afterbay_journal::storage::Disk;
use afterbay_journal_view::ended::FrameUse;
use afterbay_journal_view::usage::{Bucket, FIRST_TOKENS_MAX, Group, Numbers, Records, Sums, UsageRecord};
use afterbay_journal_view::wording::counted;
use afterbay_journal_view::{json_time, local_time, parse_time, steps::begin};
use afterbay_terminal::{self as screen, Table};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Most differences that a person gets; JSON has more.
const DIFFERENCES_SHOWN: usize = 20;

/// The exit code of an answer that lacks requests.
const EXIT_INCOMPLETE: u8 = 2;

/// Sum the tokens of the requests that have ended, and compare them with the scheduler's own counts
///
/// Reads the records of usage, and the journal for what is not recorded, also while `afterbay run` writes both: the requests whose last
/// row is in the given time and that have ended. A request on two streams counts on the first, with the scheduler's own tokens. FIRST
/// TOKEN is the time from the scheduler's queue to the first token, as the scheduler says it: the quantiles 0.5 and 0.95 of the
/// requests. GPU SECONDS is the time for which the engine worked, divided over the requests of each of its steps. Of each request, the tokens received are compared with the count in the scheduler's last row, and the ids of the prompt in the
/// request's record with the scheduler's count of its tokens. A difference is named, and the exit code is 1. Requests without such a
/// count are counted by reason. If records and journal do not reach back to --since, the time since which the answer is complete is
/// named, and the exit code is 2.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay usage --by tenant --since yesterday --until today\n  afterbay usage --by tenant --by hour --json | jq .groups"
)]
pub struct UsageArgs {
    #[command(flatten)]
    place: Place,
    /// The value to sum by: `stream`, `reason` (the scheduler's finish reason), `hour`, `day` (UTC, of the last row), or the name
    /// of an attribute, as `tenant` and `model`. Several: `--by tenant --by hour`
    #[arg(long, value_name = "VALUE", default_value = "tenant")]
    by: Vec<Bucket>,
    /// Only requests whose last row is at or after this time (RFC 3339, an age such as 1d, or in the local time zone "2026-11-20
    /// 14:00:00", 2026-11-20, today or yesterday)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<u64>,
    /// Only requests whose last row is before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out `afterbay usage`; `load` reads the configuration that --config names.
///
/// # Errors
/// The journal, the records or the configuration cannot be read, or have no such stream.
pub fn usage(args: UsageArgs, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let mut answer = Answer::new(args.by.clone(), args.since);
    (answer.stream, answer.until) = (args.place.stream().map(str::to_owned), args.until);
    let records = |dir: &Path| Records::open(Arc::new(Disk), dir);
    match args.place.directory().map(records).transpose()?.flatten() {
        Some(records) => answer.add_records_alone(&records)?,
        None => answer.add_journal(args.place.select(load)?)?,
    }
    match args.json {
        true => screen::say_json(&answer.json()),
        false => answer.print()?,
    }
    let of = &answer.sums.reconciliation;
    Ok(match (of.different + of.prompts_different, answer.is_complete()) {
        (1.., _) => ExitCode::FAILURE,
        (0, false) => ExitCode::from(EXIT_INCOMPLETE),
        (0, true) => ExitCode::SUCCESS,
    })
}

/// The sums, and what they lack.
pub(crate) struct Answer {
    pub(crate) sums: Sums,
    /// Only this stream.
    stream: Option<String>,
    since: Option<u64>,
    until: Option<u64>,
    /// The numbers of the requests that are counted, by instance and stream.
    counted: HashMap<(String, String), Numbers>,
    /// The time, Unix nanoseconds, since which every request is counted; 0 if all are.
    complete_since: u64,
    /// Damage that hides requests, in sentences.
    damaged: Vec<String>,
}

impl Answer {
    pub(crate) fn new(by: Vec<Bucket>, since: Option<u64>) -> Answer {
        Answer {
            sums: Sums::new(by),
            stream: None,
            since,
            until: None,
            counted: HashMap::new(),
            complete_since: 0,
            damaged: Vec::new(),
        }
    }

    fn add(&mut self, record: &UsageRecord) {
        let last_unix_ns = record.last_time.as_deref().and_then(|time| parse_time(time).ok()).unwrap_or(0);
        if (self.since.unwrap_or(0)..self.until.unwrap_or(u64::MAX)).contains(&last_unix_ns)
            && self.stream.as_ref().is_none_or(|stream| *stream == record.stream)
            // Both records and journal may have it.
            && self.counted.entry((record.instance.clone(), record.stream.clone())).or_default().insert(record.request)
        {
            self.sums.add(record);
        }
    }

    fn add_records(&mut self, records: &Records) -> anyhow::Result<()> {
        let damaged = records.read(self.since.unwrap_or(0), &mut |record| self.add(&record))?;
        if damaged > 0 {
            self.damaged.push(format!("{} of the records are damaged", counted(damaged, "line")));
        }
        Ok(())
    }

    /// Sums the records of a directory without a journal.
    pub(crate) fn add_records_alone(&mut self, records: &Records) -> anyhow::Result<()> {
        self.add_records(records)?;
        // The records that are there are what was asked for.
        if self.since.is_some() {
            let streams: BTreeSet<&String> = self.counted.keys().map(|(_, stream)| stream).collect();
            let since = streams.into_iter().map(|stream| records.complete_since_unix_ns(stream));
            let unknown = records.begin_unix_ns();
            self.complete_since = since.map(|since| since.unwrap_or(unknown)).max().unwrap_or(unknown);
        }
        Ok(())
    }

    /// Sums the records of a journal, and the requests of the journal that are not recorded.
    pub(crate) fn add_journal(&mut self, selected: Selected) -> anyhow::Result<()> {
        let instance = selected.journal.instance()?.unwrap_or_default();
        let dir = match &selected.config {
            Some(config) => config.usage.dir.clone(),
            None => Usage::dir_of(selected.journal.dir()),
        };
        let records = Records::open(Arc::new(Disk), &dir)?;
        if let Some(records) = &records {
            self.add_records(records)?;
        }
        for stream in selected.streams {
            if self.stream.as_deref() == Some(stream.name()) || stream.after()?.is_empty() {
                self.add_stream(stream, &instance, records.as_ref())?;
            }
        }
        Ok(())
    }

    fn add_stream(
        &mut self,
        stream: StreamReader,
        instance: &str,
        records: Option<&Records>,
    ) -> anyhow::Result<()> {
        let since = self.since.unwrap_or(0);
        let segments = stream.segments()?;
        let Some(oldest) = segments.first() else { return Ok(()) };
        // The first segment of a stream has the number 0.
        let journal_since =
            if oldest.sequence == 0 { 0 } else { stream.begun_unix_ns(*oldest)?.unwrap_or(0) };
        // Retention may have removed segments behind the records while nobody wrote records.
        let recorded = records.and_then(|records| {
            let until = records.recorded_until(stream.name()).filter(|until| until >= oldest)?;
            Some((until, records.complete_since_unix_ns(stream.name())?))
        });
        let complete_since = recorded.map_or(journal_since, |(_, recorded)| recorded.min(journal_since));
        self.complete_since = self.complete_since.max(complete_since);
        let begin = match recorded {
            Some((until, recorded_since)) if recorded_since <= since || recorded_since <= journal_since => {
                segments.partition_point(|id| *id < until)
            }
            _ => {
                if !stream.coverage()?.damage.is_empty() {
                    self.damaged.push(format!(
                        "stream {} is damaged (`afterbay journal verify` says where)",
                        stream.name()
                    ));
                }
                begin(&stream, &segments, since)?
            }
        };
        each_ended(stream, &segments[begin..], FrameUse::Facts, &mut |ended| {
            self.add(&UsageRecord::new(instance, &ended));
            Ok(())
        })?;
        Ok(())
    }

    /// The time, Unix nanoseconds, since which the answer is complete. `None` if that is before its begin.
    pub(crate) fn complete_since(&self) -> Option<u64> {
        Some(self.complete_since).filter(|since| *since > self.since.unwrap_or(0))
    }

    fn is_complete(&self) -> bool {
        self.complete_since().is_none() && self.damaged.is_empty()
    }
}

impl Answer {
    fn json(&mut self) -> Value {
        let (is_complete, complete_since) = (self.is_complete(), self.complete_since());
        let sums = &mut self.sums;
        let by: Vec<String> = sums.by().iter().map(|by| by.word().to_owned()).collect();
        let mut total = sums.total();
        let groups = sums.groups.iter_mut().map(|(values, group)| {
            let mut figures = figures(group);
            figures["by"] = by.iter().cloned().zip(values.iter().map(|value| json!(value))).collect();
            figures
        });
        json!({
            "by": by,
            "since": self.since.and_then(json_time),
            "until": self.until.and_then(json_time),
            "is_complete": is_complete,
            "complete_since": complete_since.and_then(json_time),
            "damaged": self.damaged,
            "groups": groups.collect::<Vec<_>>(),
            "total": figures(&mut total),
            "reconciliation": sums.reconciliation,
        })
    }
}

fn figures(group: &mut Group) -> Value {
    let [p50, p95] = group.first_token_ms().map_or([None; 2], |quantiles| quantiles.map(Some));
    // Numbers with text keys always serialize.
    let mut figures = serde_json::to_value(&*group).unwrap_or_default();
    figures["first_token_ms_p50"] = json!(p50);
    figures["first_token_ms_p95"] = json!(p95);
    figures
}

impl Answer {
    fn print(&mut self) -> std::io::Result<()> {
        let sums = &mut self.sums;
        let by: Vec<String> = sums.by().iter().map(|by| by.word().to_uppercase()).collect();
        let names = [
            "REQUESTS",
            "PROMPT",
            "CACHED",
            "RECEIVED",
            "FORWARDED",
            "DROPPED",
            "REPLACED",
            "SWALLOWED",
            "GPU SECONDS",
            "FIRST TOKEN P50",
            "P95",
        ];
        let mut table = Table::new(&by.iter().map(String::as_str).chain(names).collect::<Vec<_>>());
        let mut row = |values: Vec<String>, group: &mut Group| {
            let figures = [
                group.requests,
                group.prompt_tokens,
                group.cached_tokens,
                group.tokens_received,
                group.tokens_forwarded,
                group.tokens_dropped,
                group.tokens_replaced,
                group.tokens_swallowed,
            ];
            let quantiles = match group.first_token_ms() {
                Some(quantiles) => quantiles.map(|ms| format!("{ms:.1} ms")),
                None => [(); 2].map(|()| "-".to_owned()),
            };
            let seconds = std::iter::once(format!("{:.3}", group.gpu_ns as f64 / 1e9));
            let figures = figures.map(|figure| figure.to_string());
            table.row(values.into_iter().chain(figures).chain(seconds).chain(quantiles).collect());
        };
        sums.groups.iter_mut().for_each(|(values, group)| row(values.clone(), group));
        let mut total = sums.total();
        let names = std::iter::once("total").chain(std::iter::repeat(""));
        row(names.take(by.len()).map(str::to_owned).collect(), &mut total);
        table.print()?;
        // A pipe gets the table alone.
        for line in compared(sums, &total).into_iter().chain(self.lacks()) {
            screen::complain(screen::wrapped(&line, 2));
        }
        Ok(())
    }

    /// The parts that the answer lacks, in sentences.
    fn lacks(&self) -> Vec<String> {
        let damaged = self.damaged.iter().map(|damaged| format!("requests may be missing: {damaged}"));
        let late = self.complete_since().map(|since| {
            format!(
                "the answer is complete from {} on: neither the journal nor the records reach further back",
                local_time(since)
            )
        });
        damaged.chain(late).map(screen::bad).collect()
    }
}

/// The comparison in sentences.
fn compared(sums: &Sums, total: &Group) -> Vec<String> {
    if total.requests == 0 {
        return vec!["no request that has ended was found".to_owned()];
    }
    let (of, without_prompt) = (&sums.reconciliation, total.without_prompt_tokens);
    let mut lines = Vec::new();
    if of.equal > 0 {
        let line = format!(
            "{}: the scheduler counted as many tokens as were received",
            counted(of.equal, "request")
        );
        lines.push(if of.different == 0 { screen::good(line) } else { line });
    }
    for (why, requests) in &of.uncounted {
        lines.push(format!("{}: not compared, {}", counted(*requests, "request"), why.words()));
    }
    if without_prompt > 0 {
        let requests = counted(without_prompt, "request");
        lines.push(format!(
            "{requests}: not in PROMPT and CACHED, the scheduler's rows have no count of the prompt"
        ));
    }
    if of.prompts_equal > 0 {
        let line = format!(
            "{}: the scheduler counted as many tokens of the prompt as the request's record has ids",
            counted(of.prompts_equal, "request")
        );
        lines.push(if of.prompts_different == 0 { screen::good(line) } else { line });
    }
    for it in of.prompt_differences.iter().take(DIFFERENCES_SHOWN) {
        lines.push(screen::bad(format!(
            "{} request {} {:?}: the prompt has {}, the scheduler counted {}",
            it.stream,
            it.request,
            it.rid,
            counted(it.prompt_ids, "id"),
            it.prompt_tokens
        )));
    }
    if sums.is_past_quantiles() {
        lines.push(format!(
            "FIRST TOKEN is left out: over {} requests have a time (--since, --until)",
            screen::count(FIRST_TOKENS_MAX as u64)
        ));
    }
    for it in of.differences.iter().take(DIFFERENCES_SHOWN) {
        lines.push(screen::bad(format!(
            "{} request {} {:?}: received {}, the scheduler counted {}",
            it.stream,
            it.request,
            it.rid,
            counted(it.tokens_received, "token"),
            it.completion_tokens
        )));
    }
    let more = of.different.saturating_sub(DIFFERENCES_SHOWN as u64);
    if more > 0 {
        lines.push(screen::bad(format!("{} more like it (--json names 1,000)", counted(more, "request"))));
    }
    lines
}
