//! `afterbay plugin check`: shows what a component asks for, and whether it starts with its settings.

use crate::contract_names;
use crate::plugin_args::{PluginArgs, not_started};
use crate::synthetic_load::{SyntheticLoad, Timing};
use afterbay_plugin_loader::Source;
use afterbay_plugin_loader::plugin_host;
use afterbay_runtime::{Component, Given as GivenTo, LoadError, Terms};
use afterbay_terminal as screen;
use afterbay_terminal::seconds;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Rows of a measured batch, and the number of batches.
const ROWS: usize = 256;
const BATCHES: u64 = 8;
/// The deadline of a measured call.
const MEASURING: Duration = Duration::from_secs(1);

/// Show a plugin's name, grants and settings, and check that it starts
///
/// Loads the plugin as `afterbay run` would, with everything granted, and starts it once with the settings. Then shows it
/// batches of 256 synthetic rows, and warns if a call takes more than half of the deadline. Exits 1 if it is no plugin of this
/// version or does not start, and 64 if the command line is wrong.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin check stop_on_loop.wasm --settings '{\"window\": 32}'\n  afterbay plugin check builtin:delta-to-cumulative --json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    given: PluginArgs,
    /// One JSON object instead of lines
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let source = args.given.source()?;
    let (terms, settings) = (args.given.terms()?, args.given.terms.settings()?);
    check(args, &source, terms, &settings)
}

fn check(args: &Args, source: &Source, mut terms: Terms, settings: &str) -> anyhow::Result<ExitCode> {
    let host = plugin_host()?;
    let deadline = terms.limits.deadline;
    terms.limits.deadline = deadline.max(MEASURING);
    let component = match source.load(&host, terms) {
        Ok(component) => component,
        Err(error) => {
            let problems = problems(error);
            match args.json {
                true => screen::say_json(&json!({"ok": false, "problems": problems})),
                false => problems.iter().for_each(|problem| screen::complain(screen::bad(problem.clone()))),
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    let started = component.instantiate(settings);
    let (ok, memory_bytes, log) = match started {
        Ok(mut plugin) => (Ok(()), plugin.memory_bytes(), plugin.drain_log()),
        Err(error) => (Err(not_started(&component, settings, &error)), 0, Vec::new()),
    };
    let log: Vec<String> = log.into_iter().map(|line| line.message).collect();
    let measured = ok.is_ok().then(|| measure(&component, settings));
    let warning = measured.as_ref().and_then(|measured| warning(measured, deadline));
    let longest = measured.and_then(Result::ok).map(|took| took.longest);
    let found = Findings { source, component: &component, memory_bytes, log, ok, deadline, longest, warning };
    match args.json {
        true => screen::say_json(&found.json()),
        false => found.print(),
    }
    Ok(if found.ok.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures a fresh instance with synthetic batches.
fn measure(component: &Component, settings: &str) -> Result<Timing, String> {
    let load = SyntheticLoad::new(ROWS, 1);
    load.with_columns(BATCHES, component.description().columns, |columns| {
        load.timed(component, settings, columns).map_err(|error| error.to_string())
    })
}

/// The warning about the measured calls, if there is one.
fn warning(measured: &Result<Timing, String>, deadline: Duration) -> Option<String> {
    match measured {
        Err(fault) => Some(format!("batches of {ROWS} synthetic rows: {fault}")),
        Ok(took) if took.longest > deadline / 2 => Some(format!(
            "a call with {ROWS} rows took {} of processor time, more than half of the deadline of {deadline:?}: \
             afterbay plugin bench proposes a deadline",
            seconds(took.longest)
        )),
        Ok(_) => None,
    }
}

/// Every reason why the component does not load, a line each.
pub(crate) fn problems(error: LoadError) -> Vec<String> {
    match error {
        LoadError::OtherWorld { name, differences } => differences
            .iter()
            .map(|difference| format!("plugin {name:?}: built for another world: {difference}"))
            .collect(),
        error => vec![error.to_string()],
    }
}

/// Groups interfaces by package: `wasi:io (error, poll, streams)`.
fn packages(interfaces: &[&str]) -> Vec<String> {
    let mut packages: Vec<(&str, Vec<&str>)> = Vec::new();
    for interface in interfaces {
        let (name, _) = interface.split_once('@').unwrap_or((interface, ""));
        let (package, name) = name.split_once('/').unwrap_or((name, ""));
        match packages.last_mut() {
            Some((last, names)) if *last == package => names.push(name),
            _ => packages.push((package, vec![name])),
        }
    }
    packages.into_iter().map(|(package, names)| format!("{package} ({})", names.join(", "))).collect()
}

/// The findings about a loaded plugin.
struct Findings<'a> {
    source: &'a Source,
    component: &'a Component,
    /// Memory after the start.
    memory_bytes: u64,
    log: Vec<String>,
    /// Whether the plugin started with its settings.
    ok: Result<(), String>,
    /// The deadline of a call, by --deadline.
    deadline: Duration,
    /// Processor time of the longest measured call.
    longest: Option<Duration>,
    warning: Option<String>,
}

impl Findings<'_> {
    fn grants(&self) -> Vec<&'static str> {
        let imports = self.component.imports().iter();
        imports
            .filter_map(|import| match import.given {
                GivenTo::Granted(name) => Some(name),
                GivenTo::Always | GivenTo::Traps => None,
            })
            .collect()
    }

    fn traps(&self) -> Vec<&str> {
        let imports = self.component.imports().iter();
        imports.filter(|import| import.given == GivenTo::Traps).map(|import| import.name.as_str()).collect()
    }

    fn json(&self) -> Value {
        let said = self.component.description();
        json!({
            "ok": self.ok.is_ok(),
            "problems": self.ok.as_ref().err().into_iter().collect::<Vec<_>>(),
            "name": said.name,
            "version": said.version,
            "file": self.source.file,
            "sha256": self.component.digest().to_string(),
            "bytes": self.source.length(),
            "columns": contract_names::columns(said.columns),
            "calls": contract_names::calls(said.wants),
            "writes": contract_names::shape(said.writes),
            "grants": self.grants(),
            "traps": self.traps(),
            "settings_schema": said.settings_schema,
            "memory_bytes": self.memory_bytes,
            "deadline_us": u64::try_from(self.deadline.as_micros()).unwrap_or(u64::MAX),
            "longest_call_us": self.longest.map(|it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX)),
            "warnings": self.warning.iter().collect::<Vec<_>>(),
            "log": self.log,
        })
    }

    fn print(&self) {
        let said = self.component.description();
        let line = |what: &str, text: String| {
            screen::say_wrapped(format!("{} {text}", screen::faint(format!("{what:10}"))), 11);
        };
        let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        screen::say(format!("{} {}", said.name, said.version));
        if let Some(file) = &self.source.file {
            line("file", file.display().to_string());
        }
        line("sha256", self.component.digest().to_string());
        line("size", format!("{} bytes", self.source.length()));
        line("columns", list(&contract_names::columns(said.columns)));
        line("calls", list(&contract_names::calls(said.wants)));
        line("writes", format!("{} ids", contract_names::shape(said.writes)));
        line("grants", list(&self.grants()));
        for package in packages(&self.traps()) {
            line("traps", format!("{package}: linked, a trap where it is called"));
        }
        match &said.settings_schema {
            None => line("settings", "no schema".to_owned()),
            Some(schema) => {
                line("settings", "by this schema".to_owned());
                screen::say_json(&format!("{schema:#}"));
            }
        }
        for said in &self.log {
            line("log", said.clone());
        }
        match &self.ok {
            Ok(()) => line("start", screen::good(format!("ok, {} bytes of memory", self.memory_bytes))),
            Err(why) => line("start", screen::bad(why.clone())),
        }
        if let Some(longest) = self.longest {
            let (longest, deadline) = (seconds(longest), self.deadline);
            line(
                "longest",
                format!("{longest} of processor time with {ROWS} rows, the deadline is {deadline:?}"),
            );
        }
        if let Some(warning) = &self.warning {
            line("warning", screen::warn_if(warning.clone(), true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_takes_more_than_half_of_the_deadline_is_a_warning() {
        let deadline = Duration::from_millis(2);
        let took = |micros| Ok(Timing { longest: Duration::from_micros(micros), ..Timing::default() });
        assert_eq!(warning(&took(1_000), deadline), None);
        let told = warning(&took(1_001), deadline).unwrap();
        assert!(
            told.contains("took 1.0 ms of processor time, more than half of the deadline of 2ms"),
            "{told}"
        );
    }
}
