//! `afterbay plugin run --config`: the recorded traffic of a journal passes through the streams of a configuration, off the path,
//! and the difference to what happened is printed.
//!
//! The stages are those of a running stream ([`afterbay_stream::Trial`]). This module feeds them and compares. It decides nothing
//! about a row.

mod compare;
mod plugin_changes;
mod figures;
mod report;
mod stream_trial;

use crate::plugin_args::UsageError;
use crate::{StartTrial, StartTrials};
use afterbay_config as config;
use afterbay_journal::FrameNo;
use afterbay_journal::reader::{JournalReader, ReadFrom, RequestFilter, StreamReader};
use afterbay_journal_tools::Source;
use afterbay_journal_view::local_time;
use afterbay_plugin_loader::plugin_host;
use afterbay_terminal::{self as screen, Busy};
use compare::Window;
use report::{Report, Reporter};
use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;
use stream_trial::StreamTrial;

/// Frames between two messages about the progress.
const PROGRESS_EVERY: u64 = 256;

/// The options of a trial.
pub(crate) struct Options<'a> {
    pub(crate) config: &'a Path,
    pub(crate) from: &'a Source,
    pub(crate) stream: Option<&'a str>,
    pub(crate) since: Option<u64>,
    pub(crate) until: Option<u64>,
    pub(crate) json: bool,
}

/// Runs the trial of each stream that the configuration and the journal have.
pub(crate) fn run(options: &Options<'_>, start: &StartTrials) -> anyhow::Result<ExitCode> {
    let Options { since, until, .. } = *options;
    if let (Some(since), Some(until)) = (since, until)
        && since >= until
    {
        let (since, until) = (local_time(since), local_time(until));
        return Err(UsageError(format!("--since {since} is not before --until {until}")).into());
    }
    let config = (start.load)(options.config).map_err(|problems| UsageError(problems.join("\n")))?;
    let wrong = |error: anyhow::Error| UsageError(format!("{error:#}"));
    let source = options.from.open().map_err(wrong)?;
    let journal = source.journal().map_err(wrong)?;
    let streams = streams(options, &config, &journal)?;
    let prepared = (start.prepare)(config.clone(), plugin_host()?)?;
    let mut has_faults = false;
    for stream in streams {
        let reader = journal.stream(stream.name.as_str())?;
        let window = Window { since, until };
        let mut reporter = Reporter::new(stream.name.as_str(), options.json);
        let report = try_stream(stream, &reader, window, &prepared, &mut reporter)?;
        has_faults |= !report.sums.faults.is_empty();
        reporter.end(&report)?;
    }
    Ok(if has_faults { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The streams that both have. Names those that only one has.
fn streams<'c>(
    options: &Options<'_>,
    config: &'c config::Config,
    journal: &JournalReader,
) -> anyhow::Result<Vec<&'c config::Stream>> {
    let recorded = journal.streams()?;
    let (file, dir) = (options.config.display(), options.from);
    let is_wanted = |name: &str| options.stream.is_none_or(|wanted| wanted == name);
    let configured: Vec<&str> = config.streams.iter().map(|stream| stream.name.as_str()).collect();
    if let Some(wanted) = options.stream.filter(|wanted| !configured.contains(wanted)) {
        return Err(
            UsageError(format!("--stream {wanted:?}: not in {file}, which has {configured:?}")).into()
        );
    }
    if let Some(wanted) = options.stream.filter(|wanted| !recorded.iter().any(|name| name == wanted)) {
        return Err(UsageError(format!("--stream {wanted:?}: not in {dir}, which has {recorded:?}")).into());
    }
    let mut found = Vec::new();
    for stream in config.streams.iter().filter(|stream| is_wanted(stream.name.as_str())) {
        match recorded.iter().any(|name| *name == *stream.name) {
            true => found.push(stream),
            false => screen::complain(format!(
                "stream {:?}: not in {dir}, which has {recorded:?}",
                stream.name.as_str()
            )),
        }
    }
    for name in recorded.iter().filter(|name| is_wanted(name) && !configured.contains(&name.as_str())) {
        screen::complain(format!("stream {name:?} of {dir}: not in {file}, which has {configured:?}"));
    }
    if found.is_empty() {
        return Err(UsageError(format!("{dir}: no stream of {file} is there")).into());
    }
    Ok(found)
}

/// Carries the recorded frames of one stream, and hands each compared request to the reporter.
fn try_stream(
    stream: &config::Stream,
    reader: &StreamReader,
    window: Window,
    start: &StartTrial,
    reporter: &mut Reporter,
) -> anyhow::Result<Report> {
    let busy = Busy::new(format!("stream {}: plugins are compiled and started", stream.name));
    let last = reader.last_frame()?;
    let mut frames = reader.frames(begin(reader, window.since)?)?;
    let mut next = frames.next().transpose()?;
    let begins = next.as_ref().map_or(0, |(frame, _)| frame.received_unix_ns);
    let mut trial = StreamTrial::start(stream, window, begins, start)?;
    trial.leave_out(erased(reader)?);
    let mut read = 0_u64;
    while let Some((frame, outcome)) = next {
        let (number, at) = (frame.position.frame, frame.received_unix_ns);
        if window.is_over(at) {
            break;
        }
        trial.frame(frame, outcome.as_ref(), &frames);
        reporter.take(trial.take_compared())?;
        read += 1;
        if read.is_multiple_of(PROGRESS_EVERY) {
            busy.say(format!("stream {}: frame {number} of {last}, {}", stream.name, local_time(at)));
        }
        next = frames.next().transpose()?;
    }
    let (rest, report) = trial.end();
    reporter.take(rest)?;
    Ok(report)
}

/// The numbers of erased requests. Their rows no longer say anything, so nothing about them can be compared.
fn erased(reader: &StreamReader) -> anyhow::Result<HashSet<u64>> {
    let mut numbers = HashSet::new();
    for request in reader.requests(RequestFilter::default())? {
        let request = request?;
        numbers.extend(request.erased.map(|_| request.number.0));
    }
    Ok(numbers)
}

/// The first frame to read: that of the oldest request that was live at this time, so that plugins know each request from its
/// beginning.
fn begin(reader: &StreamReader, since: Option<u64>) -> anyhow::Result<ReadFrom> {
    let Some(since) = since else { return Ok(ReadFrom::Start) };
    let live =
        RequestFilter { since_unix_ns: Some(since), until_unix_ns: Some(since), ..RequestFilter::default() };
    let mut first: Option<FrameNo> = None;
    for request in reader.requests(live)? {
        let request = request?;
        first = Some(first.map_or(request.first_frame, |first| first.min(request.first_frame)));
    }
    Ok(first.map_or(ReadFrom::Time(since), ReadFrom::Frame))
}
