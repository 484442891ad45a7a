//! `afterbay plugin test`: plays scenarios and compares the outcomes with the expected ones.

use crate::contract_names;
use crate::player::Player;
use crate::plugin_args::{self, UsageError};
use crate::row::Row;
use crate::row_outcome::RowOutcome;
use crate::saves::Saves;
use crate::scenario::{Expectation, Expected, Scenario};
use crate::show::{self, Style};
use afterbay_plugin_loader::Source;
use afterbay_plugin_loader::plugin_host;
use afterbay_plugin_loader::project::{Output, Project};
use afterbay_runtime::{Action, Host};
use afterbay_terminal as screen;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Most differences of a scenario that are printed; the rest is counted.
const SHOWN_MAX: usize = 20;

/// Play scenarios to a plugin, and compare its verdicts with the expected ones
///
/// A scenario is a TOML file with a plugin, its settings and limits, batches of rows, and the expected verdict of each row. If it
/// has no expectations, the outcomes are compared with the golden file beside it (NAME.expected). A project that a scenario
/// names is built first, if its sources have changed. Exits 1 if a scenario fails, and 64 if one cannot be read.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin test\n  afterbay plugin test --watch\n  afterbay plugin test scenarios/a-loop-is-finished.toml --bless\n\n\
    A scenario (paths are from its own directory):\n\n  \
    plugin   = \"..\"                        # a project, a component file, or builtin:NAME\n  \
    settings = { window = 8, repeats = 4 }\n  \
    limits   = { memory = \"64MiB\", deadline = \"2ms\" }  # the defaults; a builtin has its own\n  \
    # tokenizer = \"tokenizer.json\"\n\n  \
    [[batch]]\n  \
    times = 3                              # repeat this batch; the default is 1\n  \
    rows  = [{ rid = \"a\", ids = [7, 8] }]  # also: text, finish = \"stop|length|abort\", …\n\n  \
    [[batch]]\n  \
    # fault = \"deadline\"                   # trap, deadline, memory or malformed\n  \
    rows  = [{ rid = \"a\", ids = [7, 8], expect = { finish = \"stop-on-loop\" } }]\n\n  \
    [[batch]]\n  \
    attributes = { a = { tenant = \"red\" } }  # from now on; also signals = { sinks = […], … }\n  \
    rows  = [{ rid = \"a\", ids = [7, 8], expect = \"swallowed\" }]\n\n\
    A row may also have prompt_tokens, completion_tokens (else they are counted), front_end, sink, and what an engine says of its tokens: logprobs, top_logprobs, cached_tokens, reasoning_tokens, drafted_tokens, accepted_tokens and weight_version. If any row of the file has `expect`, a row without it is expected to go on as it came."
)]
pub(crate) struct Args {
    /// Scenarios, directories of scenarios (*.toml), or projects, whose scenarios are in `scenarios`
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Test this plugin instead of the one that each scenario names; a path is relative to the current directory
    #[arg(long, value_name = "PLUGIN")]
    plugin: Option<String>,
    /// Do not build projects; use the component of the last build
    #[arg(long)]
    no_build: bool,
    /// Write the outcomes into the golden files
    #[arg(long)]
    bless: bool,
    /// Print one JSON object for each scenario
    #[arg(long)]
    json: bool,
    /// Test again whenever a source, a scenario or the component is saved; Ctrl-C ends
    #[arg(long, conflicts_with = "bless")]
    watch: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let host = plugin_host()?;
    if args.watch {
        return watch(args, &host);
    }
    let (_, failed) = run_once(args, &host)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests, and tests again after each save. Returns only if there is nothing to watch.
fn watch(args: &Args, host: &Host) -> anyhow::Result<ExitCode> {
    let mut saves = saves(args)?;
    let watched = saves.watched().map_err(|why| UsageError(why.to_owned()))?;
    for run in 1.. {
        screen::clear();
        match run_once(args, host) {
            Ok((scenarios, failed)) if args.json => {
                screen::say_json(&json!({"run": run, "scenarios": scenarios, "failed": failed}));
            }
            Ok(_) => {}
            Err(error) => screen::complain(screen::bad(format!("afterbay: {error:#}"))),
        }
        screen::complain(screen::faint(format!("tests again after a save in {watched}; Ctrl-C ends")));
        saves.wait();
    }
    Ok(ExitCode::SUCCESS)
}

/// The files that a test depends on: the scenarios, the sources of the projects, and the components.
fn saves(args: &Args) -> Result<Saves, UsageError> {
    let (mut dirs, mut components) = (Vec::new(), Vec::new());
    let mut plugin = |path: PathBuf| match Project::of_dir(&path) {
        Ok(project) => dirs.extend(project.sources()),
        Err(_) if path.is_dir() => dirs.push(path),
        Err(_) => components.push(path),
    };
    for path in &args.paths {
        plugin(path.clone());
        for file in files(path)? {
            // A scenario that cannot be read yet says so when it is tested.
            let named = Scenario::read(&file)
                .ok()
                .map(|scenario| (scenario.plugin.clone(), scenario.dir().to_owned()));
            let named = args.plugin.clone().map(|plugin| (plugin, PathBuf::new())).or(named);
            let named = named.filter(|(plugin, _)| !plugin.contains(':'));
            named.into_iter().for_each(|(name, base)| plugin(base.join(name)));
        }
    }
    for paths in [&mut dirs, &mut components] {
        paths.iter_mut().for_each(|path| *path = path.canonicalize().unwrap_or_else(|_| path.clone()));
        paths.sort();
        paths.dedup();
    }
    components.retain(|file| !dirs.iter().any(|dir| file.starts_with(dir.join("scenarios"))));
    Ok(Saves::new(dirs, components))
}

/// Plays every scenario once. Returns the number of scenarios and of those that failed.
fn run_once(args: &Args, host: &Host) -> anyhow::Result<(usize, usize)> {
    let files = args.paths.iter().map(|path| files(path)).collect::<Result<Vec<_>, UsageError>>()?.concat();
    let scenarios = files.iter().map(|file| Scenario::read(file)).collect::<Result<Vec<_>, UsageError>>()?;
    let mut run = TestRun { args, host, built: Vec::new() };
    let mut failed = 0;
    for scenario in &scenarios {
        let problems = run.play(scenario)?;
        failed += usize::from(!problems.is_empty());
        print(args, scenario, &problems);
    }
    if !args.json {
        let all = scenarios.len();
        let plural = if all == 1 { "" } else { "s" };
        let summary = format!("{all} scenario{plural}, {failed} failed");
        screen::say(if failed == 0 { screen::good(summary) } else { screen::bad(summary) });
    }
    Ok((scenarios.len(), failed))
}

/// The scenario files of a path, in order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, UsageError> {
    let wrong = |error: std::io::Error| UsageError(format!("{}: {error}", path.display()));
    if !path.metadata().map_err(wrong)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let dir = if Project::of_dir(path).is_ok() { path.join("scenarios") } else { path.to_owned() };
    let entries =
        std::fs::read_dir(&dir).map_err(|error| UsageError(format!("{}: {error}", dir.display())))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == "toml") && file.is_file());
    files.sort();
    match files.is_empty() {
        true => Err(UsageError(format!("{}: has no scenario (*.toml)", dir.display()))),
        false => Ok(files),
    }
}

fn print(args: &Args, scenario: &Scenario, problems: &[String]) {
    let file = scenario.file.display();
    if args.json {
        let line = json!({"scenario": scenario.file, "ok": problems.is_empty(), "rows": scenario.rows(), "problems": problems});
        return screen::say_json(&line);
    }
    if problems.is_empty() {
        return screen::say(format!("{} {file} ({} rows)", screen::good("ok  ".to_owned()), scenario.rows()));
    }
    screen::say(format!("{} {file}", screen::bad("FAIL".to_owned())));
    for problem in problems.iter().take(SHOWN_MAX) {
        problem.split('\n').for_each(|line| screen::say(format!("  {line}")));
    }
    if let Some(more @ 1..) = problems.len().checked_sub(SHOWN_MAX) {
        screen::say(format!("  … {more} more"));
    }
}

struct TestRun<'a> {
    args: &'a Args,
    host: &'a Host,
    /// The directories of projects that were built in this run.
    built: Vec<PathBuf>,
}

impl TestRun<'_> {
    /// Plays a scenario. Returns the differences, in words.
    ///
    /// # Errors
    /// The scenario cannot be played.
    fn play(&mut self, scenario: &Scenario) -> anyhow::Result<Vec<String>> {
        let named = || format!("{}: plugin", scenario.file.display());
        let source = self.source(scenario).with_context(named)?;
        let terms = plugin_args::terms(scenario.limits.clone(), scenario.tokenizer.as_deref())?;
        if let Some(store) = &terms.grants.store {
            scenario.fill(&**store)?;
        }
        let component = source.load(self.host, terms).map_err(|error| error.to_string());
        let player = component.and_then(|component| {
            Player::new(component, scenario.settings.clone()).map_err(|error| error.to_string())
        });
        let mut player = match player {
            Ok(player) => player,
            Err(why) => return Ok(vec![why]),
        };
        let (mut problems, mut happened) = (Vec::new(), String::new());
        for (batch, expectation) in &scenario.batches {
            let played = match player.play(batch) {
                Ok(played) => played,
                Err(error) => {
                    problems.push(format!("{}: {error:#}", batch.from));
                    return Ok(problems);
                }
            };
            for (row, outcome) in batch.rows.iter().zip(&played.outcomes) {
                happened += &show::line(&batch.from, row, outcome, Style::Golden);
                happened.push('\n');
            }
            for (rid, action) in &played.ended {
                happened += &format!("{} {rid}: {}\n", batch.from, contract_names::json(action));
            }
            for (rid, line) in &played.log {
                let rid = rid.as_ref().map(|rid| format!(" {rid}")).unwrap_or_default();
                let (level, text) = (contract_names::level(line.level), &line.message);
                happened += &format!("{}{rid}: log: {level}: {text}\n", batch.from);
            }
            for fault in &played.faults {
                happened += &format!("{}: fault: {}\n", batch.from, fault.cause.kind().word());
            }
            if scenario.expects {
                problems.extend(compare(&batch.from, &batch.rows, &played.outcomes, expectation));
                problems.extend(faults(&batch.from, &played.faults, expectation));
                problems.extend(ends(&batch.from, &played.ended, expectation));
            }
        }
        if !scenario.expects {
            problems.extend(self.golden(scenario, &happened)?);
        }
        Ok(problems)
    }

    /// Finds the component of a scenario. A project is built once, if a source has changed since its last build.
    fn source(&mut self, scenario: &Scenario) -> anyhow::Result<Source> {
        let (name, base) = match &self.args.plugin {
            Some(plugin) => (plugin.as_str(), Path::new("")),
            None => (scenario.plugin.as_str(), scenario.file.parent().unwrap_or(Path::new(""))),
        };
        let dir = base.join(name);
        if !self.args.no_build && !name.starts_with("builtin:") && dir.is_dir() && !self.built.contains(&dir)
        {
            let starts = |file: &Path| plugin_args::starts(self.host, file);
            let project = Project::of_dir(&dir)?;
            match self.args.watch {
                // Somebody waits.
                true => project.build_quickly_if_changed(Output::Shown, &starts)?,
                false => project.build_for_test(Output::Shown, &starts)?,
            };
            self.built.push(dir);
        }
        Ok(plugin_args::find(name, base)?)
    }

    fn golden(&self, scenario: &Scenario, happened: &str) -> anyhow::Result<Vec<String>> {
        let file = scenario.golden();
        if self.args.bless {
            std::fs::write(&file, happened).with_context(|| file.display().to_string())?;
            return Ok(Vec::new());
        }
        let expected = match std::fs::read_to_string(&file) {
            Ok(expected) => expected,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let file = file.display();
                return Ok(vec![format!("expects nothing, and there is no {file}: --bless writes it")]);
            }
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        Ok(differences(&expected, happened))
    }
}

/// The differences between the outcomes of a batch and the expected ones.
fn compare(from: &str, rows: &[Row], outcomes: &[RowOutcome], expectation: &Expectation) -> Vec<String> {
    let actual = |outcome: &RowOutcome| match (outcome, outcome.verdict()) {
        (RowOutcome::Swallowed, _) => Expected::Swallowed,
        (_, None) => Expected::AsReceived,
        (_, Some(action)) => Expected::Verdict(contract_names::json(action)),
    };
    let rows = rows.iter().zip(outcomes).zip(&expectation.rows);
    rows.map(|((row, outcome), expected)| (row, actual(outcome), expected))
        .filter(|(_, became, expected)| became != *expected)
        .map(|(row, became, expected)| {
            difference(&format!("{from} {}", row.rid), &worded(expected), &worded(&became))
        })
        .collect()
}

/// The differences between the requests that were ended before a batch and the expected ones.
fn ends(from: &str, ended: &[(String, Action)], expectation: &Expectation) -> Vec<String> {
    let became: BTreeMap<&String, Value> =
        ended.iter().map(|(rid, action)| (rid, contract_names::json(action))).collect();
    let rids: BTreeSet<&String> = became.keys().copied().chain(expectation.ended.keys()).collect();
    let worded = |end: Option<&Value>| end.map_or_else(|| "not ended".to_owned(), Value::to_string);
    rids.into_iter()
        .map(|rid| (rid, expectation.ended.get(rid), became.get(rid)))
        .filter(|(_, expected, became)| expected != became)
        .map(|(rid, expected, became)| {
            difference(&format!("{from} {rid}"), &worded(expected), &worded(became))
        })
        .collect()
}

fn worded(expected: &Expected) -> String {
    match expected {
        Expected::AsReceived => "as it came".to_owned(),
        Expected::Swallowed => "swallowed".to_owned(),
        Expected::Verdict(verdict) => verdict.to_string(),
    }
}

fn faults(from: &str, faults: &[afterbay_runtime::Fault], expectation: &Expectation) -> Vec<String> {
    let expected = expectation.fault.as_deref().unwrap_or("no fault");
    if faults.is_empty() && expectation.fault.is_some() {
        return vec![difference(from, expected, "no fault")];
    }
    let unexpected =
        faults.iter().filter(|fault| Some(fault.cause.kind().word()) != expectation.fault.as_deref());
    unexpected.map(|fault| difference(from, expected, &fault.to_string())).collect()
}

fn difference(place: &str, expected: &str, got: &str) -> String {
    format!("{place}\n{}\n{}", screen::bad(format!("- {expected}")), screen::good(format!("+ {got}")))
}

/// The differing lines, without the common ones at the beginning and the end.
fn differences(expected: &str, happened: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), happened.lines().collect());
    let begin = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let rest = old[begin..].iter().rev().zip(new[begin..].iter().rev());
    let end = rest.take_while(|(old, new)| old == new).count();
    let gone = old[begin..old.len() - end].iter().map(|line| screen::bad(format!("- {line}")));
    let came = new[begin..new.len() - end].iter().map(|line| screen::good(format!("+ {line}")));
    gone.chain(came).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A busy machine must not turn a slow call into a fault.
    const PATIENT: std::time::Duration = std::time::Duration::from_secs(10);

    #[test]
    fn every_bundled_plugin_passes_its_scenarios() {
        let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../plugins");
        let args =
            Args { paths: Vec::new(), plugin: None, no_build: true, bless: false, json: false, watch: false };
        let mut run = TestRun { args: &args, host: &plugin_host().unwrap(), built: Vec::new() };
        let mut wrong = Vec::new();
        for plugin in afterbay_bundled::all().iter().filter(|plugin| plugin.is_listed) {
            for file in files(&plugins.join(plugin.name).join("scenarios")).unwrap() {
                let mut scenario = Scenario::read(&file).unwrap();
                assert_eq!(scenario.plugin, format!("builtin:{}", plugin.name), "{}", file.display());
                scenario.limits.deadline = PATIENT;
                let problems = run.play(&scenario).unwrap();
                wrong.extend(problems.into_iter().map(|problem| format!("{}: {problem}", file.display())));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn only_the_lines_that_differ_are_shown() {
        assert_eq!(differences("a\nb\nc\n", "a\nb\nc\n"), [""; 0]);
        assert_eq!(differences("a\nb\nc\n", "a\nx\ny\nc\n"), ["- b", "+ x", "+ y"]);
        assert_eq!(differences("a\na\n", "a\n"), ["- a"]);
        assert_eq!(differences("", "a\n"), ["+ a"]);
    }
}
