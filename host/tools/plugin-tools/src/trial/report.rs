//! Prints the differences of a trial: sentences and tables, or JSON lines.

use super::compare::{ComparedRequest, FaultKey, Side, Sums};
use super::figures::{PluginFigure, PluginFigures};
use super::plugin_changes::{Difference, EarlyEnd, PluginChanges};
use afterbay_journal_view::{json_time, local_time};
use afterbay_terminal::{self as screen, Table, count};
use serde_json::json;

/// Most requests that are listed. JSON has all.
const LISTED_MAX: usize = 20;
/// Most characters of a reason in a table. JSON has all.
const REASON_CHARS: usize = 40;

/// The result of a trial of one stream.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) sums: Sums,
    pub(crate) plugins: PluginFigures,
    /// The times of the first and the last compared frame.
    pub(crate) begins_unix_ns: Option<u64>,
    pub(crate) ends_unix_ns: Option<u64>,
    /// Sentences about what a running stream has and the trial has not.
    pub(crate) missing: Vec<String>,
}

/// A request that was compared, with its differences, if any.
pub(crate) type Different = (ComparedRequest, Vec<Difference>);

/// Prints the requests of one stream as they are compared (JSON), or keeps the most important ones for a table.
pub(crate) struct Reporter {
    stream: String,
    json: bool,
    /// At most [`LISTED_MAX`] for each order of importance.
    listed: Vec<(u8, Different)>,
}

/// Smaller is more important. A request that the scheduler ended by itself and that now ends earlier is the first to look at.
fn importance((request, differences): &Different) -> u8 {
    let by_itself = request.finish.as_ref().is_some_and(|(reason, _)| reason == "stop");
    match differences.first() {
        Some(Difference::EndsEarlier) if by_itself => 0,
        Some(Difference::EndsEarlier) => 1,
        Some(Difference::EndsLater) => 2,
        Some(Difference::EndsOtherwise) => 3,
        Some(Difference::Changed) => 4,
        Some(Difference::Held) | None => 5,
    }
}

impl Reporter {
    pub(crate) fn new(stream: &str, json: bool) -> Reporter {
        Reporter { stream: stream.to_owned(), json, listed: Vec::new() }
    }

    /// Takes compared requests.
    pub(crate) fn take(&mut self, compared: Vec<Different>) -> std::io::Result<()> {
        for different in compared.into_iter().filter(|(_, differences)| !differences.is_empty()) {
            if self.json {
                screen::say_json(&self.line(&different));
                continue;
            }
            let importance = importance(&different);
            if self.listed.iter().filter(|(known, _)| *known == importance).count() < LISTED_MAX {
                self.listed.push((importance, different));
            }
        }
        Ok(())
    }

    fn line(&self, (request, differences): &Different) -> serde_json::Value {
        json!({
            "stream": self.stream,
            "rid": request.rid,
            "request": request.number,
            "differences": differences.iter().map(|it| it.word()).collect::<Vec<_>>(),
            "rows": request.rows,
            "tokens": request.tokens,
            "scheduler": request.finish.as_ref().map(|(reason, token)| json!({"finish_reason": reason, "token": token})),
            "then": request.then.json(),
            "trial": request.trial.json(),
        })
    }

    /// Prints the faults and the sums, and in text the most important requests.
    pub(crate) fn end(mut self, report: &Report) -> std::io::Result<()> {
        if self.json {
            return self.end_json(report);
        }
        self.listed.sort_by_key(|(importance, (request, _))| (*importance, request.number));
        self.listed.truncate(LISTED_MAX);
        self.headline(report);
        for sentence in sentences(&report.sums) {
            screen::say_wrapped(&sentence, 2);
        }
        for sentence in &report.missing {
            screen::say_wrapped(screen::warn_if(format!("Not in the trial: {sentence}."), true), 2);
        }
        screen::say("");
        sides(&report.sums.then, &report.sums.trial)?;
        if !report.plugins.0.is_empty() {
            screen::say("");
            plugins(report)?;
        }
        faults(&report.sums)?;
        self.requests(&report.sums)?;
        screen::say("");
        Ok(())
    }

    fn end_json(&self, report: &Report) -> std::io::Result<()> {
        let Report { sums, plugins, begins_unix_ns, ends_unix_ns, missing } = report;
        for (FaultKey { plugin, kind, message }, times) in &sums.faults {
            let line = json!({"stream": self.stream, "plugin": plugin, "fault": kind, "message": message, "times": times});
            screen::say_json(&line);
        }
        let plugin = |it: &PluginFigure| {
            json!({
                "plugin": it.plugin,
                "state": it.state,
                "rows": it.rows,
                "ns_a_row": it.ns_a_row(),
                "verdicts": it.verdicts,
                "faults": it.faults,
            })
        };
        let by_difference = sums.by_difference.iter().map(|(difference, count)| (difference.word(), *count));
        let earlier = sums.earlier_by_finish.iter();
        let earlier =
            earlier.map(|(reason, count)| (if reason.is_empty() { "none" } else { reason }, *count));
        let line = json!({"stream": self.stream, "summary": {
            "since": begins_unix_ns.and_then(json_time),
            "until": ends_unix_ns.and_then(json_time),
            "frames": sums.frames,
            "frames_not_compared": sums.frames_not_compared,
            "requests": sums.requests,
            "rows": sums.rows,
            "tokens": sums.tokens,
            "requests_different": sums.different,
            "by_difference": by_difference.collect::<std::collections::BTreeMap<_, _>>(),
            "ends_earlier_by_scheduler_finish": earlier.collect::<std::collections::BTreeMap<_, _>>(),
            "ends_earlier_by_plugin": sums.earlier_by_plugin,
            "then": sums.then.json(),
            "trial": sums.trial.json(),
            "plugins": plugins.0.iter().map(plugin).collect::<Vec<_>>(),
            "not_in_the_trial": missing,
        }});
        screen::say_json(&line);
        Ok(())
    }

    fn headline(&self, report: &Report) {
        let Sums { frames, requests, rows, tokens, .. } = &report.sums;
        let time = |at: Option<u64>| at.map(local_time).unwrap_or_default();
        let line = format!(
            "stream {}  {} requests, {} rows, {} tokens in {} frames, from {} to {}",
            self.stream,
            count(*requests),
            count(*rows),
            count(*tokens),
            count(*frames),
            time(report.begins_unix_ns),
            time(report.ends_unix_ns),
        );
        screen::say_wrapped(&line, 2);
    }

    fn requests(&self, sums: &Sums) -> std::io::Result<()> {
        if self.listed.is_empty() {
            return Ok(());
        }
        screen::say("");
        let mut table = Table::new(&["REQUEST", "DIFFERENCE", "THEN", "TRIAL"]);
        for (importance, (request, differences)) in &self.listed {
            let text: Vec<&str> = differences.iter().map(|it| it.text()).collect();
            table.row(vec![
                request.rid.clone(),
                screen::warn_if(text.join(", "), *importance == 0),
                changes(&request.then, request, differences),
                changes(&request.trial, request, differences),
            ]);
        }
        table.print()?;
        let more = sums.different.saturating_sub(self.listed.len() as u64);
        if more > 0 {
            screen::say(format!("and {} more (--json has all)", count(more)));
        }
        Ok(())
    }
}

/// The answer in sentences, the most important first.
fn sentences(sums: &Sums) -> Vec<String> {
    let mut out = Vec::new();
    let of = |difference| sums.by_difference.get(&difference).copied().unwrap_or(0);
    let requests = |count: u64| match count {
        1 => "1 request".to_owned(),
        count => format!("{} requests", screen::count(count)),
    };
    if sums.requests == 0 {
        out.push("No request was compared: the journal has no row of this time.".to_owned());
    } else if sums.different == 0 {
        out.push(screen::good("No difference: each reader gets what it got.".to_owned()));
    }
    let earlier = of(Difference::EndsEarlier);
    if earlier > 0 {
        let by =
            sums.earlier_by_plugin.iter().map(|(plugin, times)| format!("{} by {plugin}", count(*times)));
        let by: Vec<String> = by.collect();
        out.push(screen::warn_if(
            format!("{} would end earlier: {}.", requests(earlier), by.join(", ")),
            true,
        ));
        let finish =
            sums.earlier_by_finish.iter().map(|(reason, times)| match (reason.as_str(), count(*times)) {
                ("", times) => format!("{times} not at all"),
                ("stop", times) => format!("{times} with stop (by itself)"),
                (reason, times) => format!("{times} with {reason}"),
            });
        let finish: Vec<String> = finish.collect();
        out.push(format!("The scheduler ended these: {}.", finish.join(", ")));
    }
    let others = [
        (Difference::EndsLater, "would end later"),
        (Difference::EndsOtherwise, "would end with another reason or text"),
        (Difference::Changed, "would get other tokens"),
        (Difference::Held, "would have another number of held rows"),
    ];
    for (difference, what) in others {
        if of(difference) > 0 {
            out.push(format!("{} {what}.", requests(of(difference))));
        }
    }
    let times: u64 = sums.faults.values().sum::<u64>() + sums.more_faults;
    if times > 0 {
        out.push(screen::bad(format!("Plugins faulted or failed {} times.", count(times))));
    }
    if sums.frames_not_compared > 0 {
        out.push(format!(
            "{} frames are not compared: the journal has no outcome of them, or the trial reads other rows in them.",
            count(sums.frames_not_compared)
        ));
    }
    out
}

fn sides(then: &Side, trial: &Side) -> std::io::Result<()> {
    let mut table = Table::new(&["", "THEN", "TRIAL", "DIFFERENCE"]);
    let rows = [
        ("requests ended early", then.ended_early, trial.ended_early),
        ("tokens after such an end", then.swallowed, trial.swallowed),
        ("tokens dropped", then.dropped, trial.dropped),
        ("tokens replaced", then.replaced, trial.replaced),
        ("rows held", then.rows_held, trial.rows_held),
    ];
    for (name, then, trial) in rows {
        let difference = match trial.abs_diff(then) {
            0 => String::new(),
            by => format!("{}{}", if trial > then { "+" } else { "-" }, count(by)),
        };
        table.row(vec![
            name.to_owned(),
            count(then),
            count(trial),
            screen::warn_if(difference, trial != then),
        ]);
    }
    table.print()
}

fn plugins(report: &Report) -> std::io::Result<()> {
    let mut table = Table::new(&["PLUGIN", "STATE", "ROWS", "NS/ROW", "VERDICTS", "FAULTS"]);
    let counts = |counts: &std::collections::BTreeMap<&'static str, u64>| {
        let each = counts.iter().map(|(name, times)| format!("{name} {}", count(*times)));
        let each: Vec<String> = each.collect();
        if each.is_empty() { "-".to_owned() } else { each.join(", ") }
    };
    for it in &report.plugins.0 {
        table.row(vec![
            it.plugin.clone(),
            screen::warn_if(it.state.to_owned(), !matches!(it.state, "live" | "shadow")),
            count(it.rows),
            it.ns_a_row().map_or_else(|| "-".to_owned(), count),
            counts(&it.verdicts),
            counts(&it.faults),
        ]);
    }
    table.print()
}

fn faults(sums: &Sums) -> std::io::Result<()> {
    if sums.faults.is_empty() {
        return Ok(());
    }
    screen::say("");
    let mut table = Table::new(&["TIMES", "PLUGIN", "FAULT", "MESSAGE"]);
    for (FaultKey { plugin, kind, message }, times) in &sums.faults {
        table.row(vec![count(*times), plugin.clone(), screen::bad(kind.clone()), message.clone()]);
    }
    table.print()?;
    if sums.more_faults > 0 {
        screen::say(format!("and {} more", count(sums.more_faults)));
    }
    Ok(())
}

/// The changes to a request in a table: the end that the reader gets, then the counts that differ.
fn changes(changes: &PluginChanges, request: &ComparedRequest, differences: &[Difference]) -> String {
    let mut parts = Vec::new();
    match (&changes.end, &request.finish) {
        (Some(EarlyEnd { token, plugin, reason, text, .. }), _) => {
            let mut shown: String = text.chars().take(REASON_CHARS).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            let text = if shown.is_empty() { String::new() } else { format!(" {shown:?}") };
            parts.push(format!("{reason} at {token} by {plugin}{text}"));
        }
        (None, Some((reason, token))) => parts.push(format!("{reason} at {token}")),
        (None, None) => parts.push("no end".to_owned()),
    }
    let counts = [
        (Difference::Changed, changes.dropped, "tokens dropped"),
        (Difference::Changed, changes.replaced, "tokens replaced"),
        (Difference::Held, changes.rows_held, "rows held"),
    ];
    let counts = counts.iter().filter(|(of, ..)| differences.contains(of));
    parts.extend(counts.map(|(_, number, what)| format!("{} {what}", count(*number))));
    parts.join(", ")
}
