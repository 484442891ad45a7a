//! `afterbay plugin check`: shows what a component asks for, and whether it starts with its settings.

use crate::contract_names;
use crate::plugin_args::{PluginArgs, not_started};
use afterbay_plugin_loader::Source;
use afterbay_plugin_loader::plugin_host;
use afterbay_runtime::{Component, LoadError};
use afterbay_terminal as screen;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Show a plugin's name, grants and settings, and check that it starts
///
/// Loads the plugin as `afterbay run` would, with everything granted, and starts it once with the settings. Exits 1 if it is no
/// plugin of this version or does not start, and 64 if the command line is wrong. `afterbay plugin bench` measures its calls.
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
    let host = plugin_host()?;
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
    let started = component.instantiate(&settings);
    let (ok, memory_bytes, log) = match started {
        Ok(mut plugin) => (Ok(()), plugin.memory_bytes(), plugin.drain_log()),
        Err(error) => (Err(not_started(&component, &settings, &error)), 0, Vec::new()),
    };
    let log: Vec<String> = log.into_iter().map(|line| line.message).collect();
    let found = Findings { source: &source, component: &component, memory_bytes, log, ok };
    match args.json {
        true => screen::say_json(&found.json()),
        false => found.print(),
    }
    Ok(if found.ok.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every reason why the component does not load, a line each.
fn problems(error: LoadError) -> Vec<String> {
    match error {
        LoadError::OtherWorld { name, differences } => differences
            .iter()
            .map(|difference| format!("plugin {name:?}: built for another world: {difference}"))
            .collect(),
        error => vec![error.to_string()],
    }
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
}

impl Findings<'_> {
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
            "grants": self.component.wanted(),
            "settings_schema": said.settings_schema,
            "memory_bytes": self.memory_bytes,
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
        line("grants", list(self.component.wanted()));
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
    }
}
