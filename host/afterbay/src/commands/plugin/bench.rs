//! `afterbay plugin bench`: what a row costs, in time and in fuel, beside what it costs at least.

use super::given::{Given, Source, Wrong};
use crate::screen::{self, Table};
use crate::start;
use afterbay_runtime::{Columns, Component, FinishKind, Host, HostOptions, Limits, Opened, Plugin, TokenId};
use anyhow::Context;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The plugin that says nothing.
const FLOOR: &str = "builtin:floor";
/// Rows of a batch that are measured, those up to `--rows`.
const SIZES: [usize; 5] = [1, 16, 64, 256, 1024];
/// Batches of one series. Each is shown to a fresh instance, so that what it has to keep does not grow from series to series.
const BATCHES: u64 = 64;
/// Ids of a batch: those of all batches are there at once.
const IDS_MAX: u64 = 1 << 17;
/// Series of one size: the time is the median of theirs.
const SERIES: usize = 9;
/// Time of a call, and of a start, where fuel is counted: it is not the time that is measured.
const COUNTING: Duration = Duration::from_secs(60);

/// Measure what a row costs: nanoseconds, and fuel, which is the same on every machine
///
/// Each size of batch is 64 steps of so many requests, in 9 series with a fresh instance each, in turn with a plugin that asks
/// for the same columns and says nothing (the floor: the call and the copying). The time is the median of the series; fuel is
/// counted apart, in code that counts (about one an instruction of WebAssembly), and belongs to the version of wasmtime.
/// Exits 1 where a row of the largest batch costs more than it may, or the plugin faults.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin bench stop_on_loop.wasm\n  afterbay plugin bench target/wasm32-wasip2/release/stop_on_loop.wasm --rows 256 --max-fuel 400"
)]
pub(super) struct Args {
    #[command(flatten)]
    given: Given,
    /// Rows of the largest batch
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    rows: u32,
    /// New ids of each row; those of a batch are at most 131072
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1024))]
    ids: u32,
    /// The most fuel that a row may cost
    #[arg(long, value_name = "N")]
    max_fuel: Option<u64>,
    /// The most nanoseconds that a row may cost, the floor included
    #[arg(long, value_name = "N")]
    max_ns: Option<u64>,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// What was measured at one size.
struct Measured {
    rows: usize,
    ns: u64,
    floor_ns: u64,
    fuel: u64,
    floor_fuel: u64,
    /// In a series.
    verdicts: u64,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let ids = u64::from(args.rows) * u64::from(args.ids);
    if ids > IDS_MAX {
        let why = format!("--rows and --ids make batches of {ids} ids, at most {IDS_MAX} are allowed");
        return Err(Wrong(why).into());
    }
    let (source, floor) = (args.given.source()?, Source::find(FLOOR, std::path::Path::new(""))?);
    let (terms, settings) = (args.given.terms.terms()?, args.given.terms.settings()?);
    let serving = start::plugin_host()?;
    let counting = Host::new(HostOptions { counts_fuel: true, ..start::host_options() })?;
    let mut patient = terms.clone();
    patient.limits = Limits { deadline: COUNTING, start_deadline: COUNTING, ..patient.limits };
    let subject = Subject {
        timed: source.load(&serving, terms.clone())?,
        counted: source.load(&counting, patient.clone())?,
        settings,
    };
    let starts = subject.timed.instantiate(&subject.settings);
    starts.map_err(|error| anyhow::Error::msg(args.given.terms.not_started(&subject.timed, &error)))?;
    let floor = Subject {
        timed: floor.load(&serving, terms)?,
        counted: floor.load(&counting, patient)?,
        settings: "{}".to_owned(),
    };
    let largest = args.rows as usize;
    let sizes = SIZES.into_iter().filter(|size| *size < largest).chain([largest]);
    let measured = sizes
        .map(|rows| {
            let measured = measure(&subject, &floor, &Load::new(rows, args.ids as usize));
            measured.with_context(|| format!("batches of {rows} rows"))
        })
        .collect::<anyhow::Result<Vec<Measured>>>()?;
    let over = measured.last().map_or(Vec::new(), |last| over(args, last));
    match args.json {
        true => println!("{}", json(&subject.timed, args, &measured, &over)),
        false => print(&subject.timed, &measured, &over)?,
    }
    Ok(if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is over its limit, in words.
fn over(args: &Args, last: &Measured) -> Vec<String> {
    let limits = [("fuel", last.fuel, args.max_fuel), ("ns", last.ns, args.max_ns)];
    let over = limits.into_iter().filter_map(|(what, cost, limit)| {
        let limit = limit.filter(|limit| cost > *limit)?;
        Some(format!("a row of {} costs {cost} {what}, at most {limit} are allowed", last.rows))
    });
    over.collect()
}

/// A plugin, compiled for both.
struct Subject {
    timed: Component,
    counted: Component,
    settings: String,
}

/// Requests and their ids, step by step; always the same.
struct Load {
    rows: usize,
    requests: Vec<u64>,
    rids: Vec<String>,
    ids_a_row: usize,
}

/// A step's columns.
struct Step {
    ids: Vec<TokenId>,
    ends: Vec<u32>,
    completion_tokens: Vec<u64>,
    finished: Vec<FinishKind>,
    texts: Vec<String>,
}

impl Load {
    fn new(rows: usize, ids_a_row: usize) -> Load {
        let requests: Vec<u64> = (1..=rows as u64).collect();
        let rids = requests.iter().map(|number| format!("{number:032x}")).collect();
        Load { rows, requests, rids, ids_a_row }
    }

    fn steps(&self) -> Vec<Step> {
        // Ids as a vocabulary of 32,000 has them, without a pattern that a plugin would look for.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut id = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            TokenId::try_from((state >> 33) % 32_000).unwrap_or_default()
        };
        (1..=BATCHES)
            .map(|step| Step {
                ids: (0..self.rows * self.ids_a_row).map(|_| id()).collect(),
                ends: (1..=self.rows).map(|row| (row * self.ids_a_row) as u32).collect(),
                completion_tokens: vec![step * self.ids_a_row as u64; self.rows],
                finished: vec![FinishKind::Running; self.rows],
                texts: (0..self.rows).map(|_| " word".repeat(self.ids_a_row)).collect(),
            })
            .collect()
    }

    fn opened(&self) -> Vec<Opened<'_>> {
        let requests = self.requests.iter().zip(&self.rids);
        let opened = requests.map(|(request, rid)| Opened {
            request: *request,
            rid,
            http_worker_ipc: "",
            sink: "",
            prompt_tokens: 64,
            received_tokens: 0,
            resumed: false,
        });
        opened.collect()
    }
}

/// The floor asks for everything; it is given what the plugin asks for, so that as much is copied.
fn measure(subject: &Subject, floor: &Subject, load: &Load) -> anyhow::Result<Measured> {
    let wants = subject.timed.description().columns;
    let steps = load.steps();
    let texts: Vec<Vec<&str>> =
        steps.iter().map(|step| step.texts.iter().map(String::as_str).collect()).collect();
    let waiting = vec![0; load.rows];
    let columns: Vec<Columns<'_>> = steps
        .iter()
        .zip(&texts)
        .map(|(step, texts)| Columns {
            requests: &load.requests,
            output_ids: if wants.output_ids { &step.ids } else { &[] },
            output_ends: if wants.output_ids { &step.ends } else { &[] },
            completion_tokens: if wants.completion_tokens { &step.completion_tokens } else { &[] },
            finished: if wants.finished { &step.finished } else { &[] },
            texts: if wants.texts { texts } else { &[] },
            waiting: if wants.waiting { &waiting } else { &[] },
        })
        .collect();
    let (mut times, mut floors, mut verdicts) = (Vec::new(), Vec::new(), 0);
    for _ in 0..SERIES {
        let (time, said) = timed(subject, load, &columns)?;
        times.push(time);
        verdicts = said;
        floors.push(timed(floor, load, &columns)?.0);
    }
    let all = load.rows as u64 * BATCHES;
    let ns = |mut times: Vec<Duration>| {
        times.sort_unstable();
        u64::try_from(times[SERIES / 2].as_nanos()).unwrap_or(u64::MAX).div_ceil(all)
    };
    Ok(Measured {
        rows: load.rows,
        ns: ns(times),
        floor_ns: ns(floors),
        fuel: fuel(subject, load, &columns)?.div_ceil(all),
        floor_fuel: fuel(floor, load, &columns)?.div_ceil(all),
        verdicts,
    })
}

fn started(component: &Component, settings: &str, load: &Load) -> anyhow::Result<Plugin> {
    let mut plugin = component.instantiate(settings)?;
    plugin.open(&load.opened())?;
    Ok(plugin)
}

/// How long a series took, and how many verdicts came of it.
fn timed(subject: &Subject, load: &Load, columns: &[Columns<'_>]) -> anyhow::Result<(Duration, u64)> {
    let mut plugin = started(&subject.timed, &subject.settings, load)?;
    let mut verdicts = 0;
    let begun = Instant::now();
    for columns in columns {
        verdicts += plugin.process(columns)?.len() as u64;
    }
    Ok((begun.elapsed(), verdicts))
}

/// The fuel of a series.
fn fuel(subject: &Subject, load: &Load, columns: &[Columns<'_>]) -> anyhow::Result<u64> {
    let mut plugin = started(&subject.counted, &subject.settings, load)?;
    let before = plugin.fuel_used().unwrap_or(0);
    for columns in columns {
        plugin.process(columns)?;
    }
    Ok(plugin.fuel_used().unwrap_or(0).saturating_sub(before))
}

fn json(component: &Component, args: &Args, measured: &[Measured], over: &[String]) -> serde_json::Value {
    let said = component.description();
    let sizes = measured.iter().map(|it| {
        json!({
            "rows": it.rows,
            "ns_a_row": it.ns,
            "floor_ns_a_row": it.floor_ns,
            "fuel_a_row": it.fuel,
            "floor_fuel_a_row": it.floor_fuel,
            "verdicts": it.verdicts,
        })
    });
    json!({
        "ok": over.is_empty(),
        "problems": over,
        "name": said.name,
        "version": said.version,
        "sha256": component.digest().to_string(),
        "batches": BATCHES,
        "ids_a_row": args.ids,
        "sizes": sizes.collect::<Vec<_>>(),
    })
}

fn print(component: &Component, measured: &[Measured], over: &[String]) -> anyhow::Result<()> {
    let said = component.description();
    println!(
        "{} {}, {BATCHES} batches of each size; the floor is a plugin that says nothing",
        said.name, said.version
    );
    let mut table = Table::new(&[
        "rows a batch",
        "ns a row",
        "of which the floor",
        "fuel a row",
        "of which the floor",
        "verdicts",
    ]);
    for it in measured {
        let figures = [it.rows as u64, it.ns, it.floor_ns, it.fuel, it.floor_fuel, it.verdicts];
        table.row(figures.map(|figure| figure.to_string()).to_vec());
    }
    table.print()?;
    for problem in over {
        println!("{}", screen::bad(problem.clone()));
    }
    Ok(())
}
