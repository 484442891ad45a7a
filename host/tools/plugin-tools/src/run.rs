//! `afterbay plugin run`: shows recorded rows to a plugin, and prints the outcomes.

use crate::contract_names;
use crate::effects::Recorder;
use crate::player::{PlayedBatch, Player};
use crate::plugin_args::{TermArgs, UsageError, default_limits, find, not_started};
use crate::row;
use crate::row_outcome::RowOutcome;
use crate::rows::{Barriers, RowArgs};
use crate::show::{self, Style};
use crate::step::Steps;
use crate::{StartTrials, trial};
use afterbay_journal_view::parse_time;
use afterbay_plugin_loader::Source;
use afterbay_plugin_loader::plugin_host;
use afterbay_runtime::Terms;
use afterbay_terminal::{self as screen, Output};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Run recorded rows through a plugin, or recorded traffic through a whole configuration
///
/// The rows for a PLUGIN are from a journal or a packed request (which are only read), from files with frames, or from a scenario.
/// The plugin sees them batch by batch, in the real runtime and within its limits. It does not see erased rows. Each changed row is printed as a line: ids and text before and
/// after, verdict and reason. With --step each row is a block: what arrived, what the plugin saw, said and logged, and what left.
/// A scenario names its own plugin and settings.
///
/// The option --config sends the frames of a journal through the streams of that configuration, matched by name, with the parts of
/// `afterbay run`: plugin chain, shadows, grants, limits, settings, attributes by rules, tokenizers. Held rows are released at the
/// recorded times. Nothing is sent or written. The differences to what happened are printed: for each request and in sum. Stores
/// begin empty. Calls to services get no answer, so their rows stay held for limits.hold. Signals, and attributes that were set over
/// the admin address, are not in a journal and are missing. A request that ended early at the time may have no later rows to judge.
///
/// Exits 1 if a plugin faults. A difference is no failure.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin run stop_on_loop.wasm --from /var/lib/afterbay --rid 5b0c1f\n  afterbay plugin run --from scenarios/stop.toml --step\n  afterbay plugin run builtin:delta-to-cumulative --from frames/ --all\n  afterbay plugin run --config new.toml --from /var/lib/afterbay --since 24h\n\n\
JSON with --config: an object for each request with a difference has stream, rid, request, differences (ends_earlier, ends_later, \
ends_otherwise, changed, held), rows, tokens, scheduler (finish_reason, token), and then and trial, each with end (token, frame, \
plugin, finish_reason, text), tokens_dropped, tokens_replaced, tokens_swallowed (received after the end) and rows_held. An object for \
each fault has stream, plugin, fault, message and times. The last object of a stream has stream and summary."
)]
pub(crate) struct Args {
    /// A component file, builtin:NAME, oci://HOST/REPOSITORY@sha256:DIGEST, or the directory of a project that was built
    /// [default: that of the scenario]
    #[arg(value_name = "PLUGIN")]
    plugin: Option<String>,
    /// Try this configuration on the recorded traffic of the journal in --from
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_WITH_CONFIG)]
    config: Option<PathBuf>,
    /// Compare from this time on, with --config (RFC 3339, "2026-11-20 14:00:00", or an age such as 10m). Requests that had begun are
    /// shown from their first row, and compared from this time on
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "config")]
    since: Option<u64>,
    /// Compare up to this time, with --config
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "config")]
    until: Option<u64>,
    #[command(flatten)]
    terms: TermArgs,
    #[command(flatten)]
    rows: RowArgs,
    /// Show each row step by step: what arrived, what the plugin saw, said and logged, and what left
    #[arg(long, conflicts_with = "all")]
    step: bool,
    /// Show unchanged rows, and rows of requests that the plugin ended, too
    #[arg(long)]
    all: bool,
    /// Print one JSON object a line, with every id: the steps of each shown row, what happened beside the rows, and the summary
    #[arg(long)]
    json: bool,
}

/// The options that have no meaning with a whole configuration, which has its own.
const NOT_WITH_CONFIG: [&str; 9] =
    ["plugin", "settings", "tokenizer", "memory", "deadline", "rid", "sink", "step", "all"];

pub(crate) fn run(args: &Args, trials: &StartTrials) -> anyhow::Result<ExitCode> {
    if let Some(config) = &args.config {
        let (from, stream) = args.rows.journal();
        let Args { since, until, json, .. } = *args;
        return trial::run(&trial::Options { config, from: &from, stream, since, until, json }, trials);
    }
    let scenario = args.rows.scenario()?;
    let given = args.plugin.as_deref().map(|plugin| find(plugin, Path::new("")));
    let (source, terms, settings) = match (scenario, given) {
        (None, None) => {
            let why = "PLUGIN is missing: only a scenario (--from NAME.toml) and a configuration (--config) name their own".to_owned();
            return Err(UsageError(why).into());
        }
        (None, Some(source)) => {
            let limits = default_limits(args.plugin.as_deref().unwrap_or_default());
            (source?, args.terms.terms(limits, None)?, args.terms.settings()?)
        }
        (Some(scenario), given) => {
            let source = given.unwrap_or_else(|| find(&scenario.plugin, scenario.dir()))?;
            let terms = args.terms.terms(scenario.limits.clone(), scenario.tokenizer.as_deref())?;
            let settings = if args.terms.has_settings() { args.terms.settings()? } else { scenario.settings };
            (source, terms, settings)
        }
    };
    look(args, &source, terms, settings)
}

fn look(args: &Args, source: &Source, mut terms: Terms, settings: String) -> anyhow::Result<ExitCode> {
    let host = plugin_host()?;
    let recorder = Recorder::default();
    terms.grants.metrics = Some(Arc::new(recorder.clone()));
    terms.grants.store = Some(Arc::new(recorder.clone()));
    let component = source.load(&host, terms)?;
    let mut player = Player::new(component.clone(), settings.clone())
        .map_err(|error| anyhow::Error::msg(not_started(&component, &settings, &error)))?;
    let steps = Steps::new(&component);
    let mut summary = Summary::default();
    let mut out = Output::new();
    let barriers = args.rows.each(&mut |batch| {
        row::check(&batch)?;
        let played = player.play(&batch)?;
        summary.batches += 1;
        summary.faults += played.faults.len() as u64;
        played.outcomes.iter().for_each(|outcome| summary.count(outcome));
        let is_shown = |outcome: &RowOutcome| args.all || args.step || outcome.is_changed();
        let effects = recorder.take();
        if args.json {
            let lines = steps.lines(&batch, &played, &effects, is_shown);
            return Ok(lines.iter().try_for_each(|line| out.json(line))?);
        }
        if args.step {
            let blocks = steps.blocks(&batch, &played, &effects);
            return Ok(blocks.iter().try_for_each(|block| out.lines(block))?);
        }
        for (rid, action) in &played.ended {
            out.line(&format!("{} {rid}: {}", batch.from, contract_names::json(action)))?;
        }
        for (row, outcome) in batch.rows.iter().zip(&played.outcomes).filter(|(_, it)| is_shown(it)) {
            out.line(&show::line(&batch.from, row, outcome, Style::Screen))?;
        }
        print_log(&mut out, &batch.from, &played)
    })?;
    out.flush()?;
    match args.json {
        true => out.json(&summary.json(&player, &barriers))?,
        false => out.lines(&summary.text(&player, &barriers))?,
    }
    out.flush()?;
    Ok(if summary.faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what the plugin logged, and its faults.
fn print_log(out: &mut Output, from: &str, played: &PlayedBatch) -> anyhow::Result<()> {
    for (rid, line) in &played.log {
        let (level, text) = (contract_names::level(line.level), &line.message);
        let rid = rid.as_ref().map(|rid| format!(" {rid}")).unwrap_or_default();
        out.line(&screen::faint(format!("{from}{rid}: log: {level}: {text}")))?;
    }
    for fault in &played.faults {
        out.lines(&screen::bad(format!("{from}: fault: {fault}")))?;
    }
    Ok(())
}

/// The counts of a run.
#[derive(Default)]
struct Summary {
    batches: u64,
    rows: u64,
    as_they_came: u64,
    swallowed: u64,
    /// Rows without a verdict that were joined with held rows of their request.
    joined: u64,
    faults: u64,
    /// Verdicts, by name.
    verdicts: BTreeMap<&'static str, u64>,
}

impl Summary {
    fn count(&mut self, outcome: &RowOutcome) {
        self.rows += 1;
        match (outcome, outcome.verdict()) {
            (_, Some(action)) => *self.verdicts.entry(contract_names::name(action).0).or_default() += 1,
            (RowOutcome::Swallowed, _) => self.swallowed += 1,
            (RowOutcome::Held(_) | RowOutcome::Released { .. }, _) => self.joined += 1,
            (RowOutcome::AsReceived | RowOutcome::Verdict(_), _) => self.as_they_came += 1,
        }
    }

    fn json(&self, player: &Player, barriers: &Barriers) -> serde_json::Value {
        let calls = player.calls;
        json!({"summary": {
            "requests": player.requests(),
            "batches": self.batches,
            "rows": self.rows,
            "as_they_came": self.as_they_came,
            "swallowed": self.swallowed,
            "joined": self.joined,
            "verdicts": self.verdicts,
            "faults": self.faults,
            "ns_a_row": calls.ns_a_row(),
            "longest_call_us": u64::try_from(calls.longest.as_micros()).unwrap_or(u64::MAX),
            "memory_bytes": player.memory_bytes(),
            "frames_without_rows": barriers,
        }})
    }

    fn text(&self, player: &Player, barriers: &Barriers) -> String {
        let requests = player.requests();
        let Summary { batches, rows, as_they_came, swallowed, joined, faults, .. } = self;
        let mut kinds = vec![format!("{as_they_came} as they came")];
        kinds.extend(self.verdicts.iter().map(|(name, count)| format!("{count} {name}")));
        let others = [(joined, "joined with what waits"), (swallowed, "swallowed")];
        let others = others.into_iter().filter(|(count, _)| **count > 0);
        kinds.extend(others.map(|(count, what)| format!("{count} {what}")));
        let faults = format!("{faults} faults");
        let calls = player.calls;
        let mut text = format!(
            "{rows} rows of {requests} requests in {batches} batches: {}\n{}, {} ns a row, longest call {:?}, {} bytes of memory",
            kinds.join(", "),
            if self.faults > 0 { screen::bad(faults) } else { faults },
            calls.ns_a_row(),
            calls.longest,
            player.memory_bytes(),
        );
        for (kind, count) in barriers {
            text += &format!("\n{count} frames without rows, not shown to it: {kind}");
        }
        text
    }
}
