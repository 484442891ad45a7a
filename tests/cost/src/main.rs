//! `make bench-cost`: the instructions of each stage beside the committed figures.

use afterbay_cost::callgrind::{self, Caller, Cost, Profile};
use afterbay_cost::carried;
use afterbay_cost::figures::{CaseFigures, Figures};
use afterbay_cost::loads::{LOADS, Load};
use afterbay_cost::traffic::Traffic;
use anyhow::{Context, bail, ensure};
use clap::Parser;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

/// Count the instructions of each stage of the path, beside those of the last commit
#[derive(Parser)]
struct Args {
    /// Write tests/cost/cost.toml instead of comparing with it
    #[arg(long)]
    bless: bool,
    /// Only the cases whose name contains TEXT, such as "pickle.64", or the loads, such as "load.held"
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Do the work that is measured. The program starts itself so under callgrind
    #[arg(long, hide = true)]
    measured: bool,
}

/// The frames of a request, each with one token of it. The cost of its beginning and end is spread over them.
const STEPS: u64 = 32;
const WIRES: [&str; 3] = ["msgpack", "pickle", "vllm"];
const ROWS: [u64; 3] = [1, 64, 1024];

/// The stages, with the functions by which the path enters them, by type and name. Another type is a `FrameDecoder`, too.
const STAGES: [(&str, &[&str]); 7] = [
    ("receive", &["Pull::ready", "Pull::receive", "Pull::note", "Pull::done"]),
    ("journal", &["FrameLog::persist", "FrameLog::next"]),
    ("decode", &["decoded::FrameDecoder::decode"]),
    ("account", &["Ledger::account", "Ledger::settle"]),
    ("plugins", &["Chain::run"]),
    ("route", &["Delivery::push"]),
    ("send", &["Delivery::send"]),
];
/// A turn of the stream: all stages, the poll and what is due.
const TURN: &str = "DrivenStream::turn";

/// The name for system calls among the stages.
const SYSTEM_CALLS: &str = "system calls a frame";

/// Frames of one encoding and size.
struct Case {
    wire: &'static str,
    rows: u64,
}

fn cases() -> impl Iterator<Item = Case> {
    WIRES.into_iter().flat_map(|wire| ROWS.map(|rows| Case { wire, rows }))
}

impl Case {
    fn name(&self) -> String {
        format!("{}.{}", self.wire, self.rows)
    }

    /// Does the work that is measured, in two parts.
    fn run(&self) -> anyhow::Result<()> {
        let traffic = Traffic::new(self.wire, self.rows, STEPS)?;
        carried::carry(&traffic, engine(self.wire))?;
        carried::part_ends();
        carried::join_and_take(&traffic)?;
        carried::part_ends();
        Ok(())
    }

    /// The figures of the two parts.
    fn figures(&self, carried: &Profile, joined: &Profile) -> anyhow::Result<CaseFigures> {
        let rows = (STEPS * self.rows) as f64;
        let mut figures = CaseFigures::new();
        let mut add = |stage: &str, cost: Cost, rows: f64| {
            figures.push((stage.to_owned(), round(cost.instructions as f64 / rows)));
        };
        for (stage, functions) in STAGES {
            add(stage, carried.cost(Caller::Path, functions)?, rows);
        }
        let turns = carried.cost(Caller::Program, &[TURN])?;
        add("all", turns, rows);
        let (joined_rows, taken_rows) = carried::joined_and_taken(self.rows);
        add("join", joined.cost(Caller::Program, &["Batch::join"])?, joined_rows as f64);
        add("take", joined.cost(Caller::Program, &["Batch::take"])?, taken_rows as f64);
        figures.push((SYSTEM_CALLS.to_owned(), round(turns.system_calls as f64 / STEPS as f64)));
        Ok(figures)
    }
}

/// Does all that a process does once, so that no case has it.
fn warm() -> anyhow::Result<()> {
    for wire in WIRES {
        carried::carry(&Traffic::new(wire, 1, 2)?, engine(wire))?;
    }
    carried::part_ends();
    Ok(())
}

/// The engine whose frames have this encoding.
fn engine(wire: &str) -> &'static str {
    if wire == "vllm" { "vllm" } else { "sglang" }
}

/// A figure as the file has it.
fn round(figure: f64) -> f64 {
    (10.0 * figure).round() / 10.0
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let cases: Vec<Case> = cases().filter(|case| case.name().contains(&args.only)).collect();
    if !args.only.is_empty() && cases.is_empty() {
        return loads(&args);
    }
    if args.measured {
        warm()?;
        return cases.iter().try_for_each(Case::run);
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = here.join("cost.toml");
    let last = match std::fs::read_to_string(&file) {
        Ok(text) => Figures::parse(&text).with_context(|| file.display().to_string())?,
        Err(_) => Figures::default(),
    };
    let parts = callgrind::run(&["--measured", "--only", &args.only], "part_ends")?;
    let (parts, _) = parts.get(1..).unwrap_or_default().as_chunks::<2>();
    ensure!(parts.len() == cases.len(), "{} of {} cases were measured", parts.len(), cases.len());
    let figures = cases.iter().zip(parts).map(|(case, [carried, joined])| {
        let figures = case.figures(carried, joined).with_context(|| case.name())?;
        Ok((case.name(), figures))
    });
    let now = Figures { compiler: compiler()?, cases: figures.collect::<anyhow::Result<_>>()? };
    for wire in WIRES {
        show(wire, &now, &last)?;
    }
    if args.bless {
        ensure!(args.only.is_empty(), "--bless writes all cases: leave --only out");
        return std::fs::write(&file, now.to_toml()).with_context(|| file.display().to_string());
    }
    if last.compiler != now.compiler {
        writeln!(io::stdout(), "the committed figures are of {}: not compared", last.compiler)?;
        return Ok(());
    }
    let grown = now.grown(&last);
    if !grown.is_empty() {
        bail!(
            "{}\nmake it cheaper, or commit the figures (make bench-cost BLESS=1) with a message that says why",
            grown.join("\n")
        );
    }
    Ok(())
}

/// Measures frames with each load whose name contains `--only`, beside the same frames without the load.
fn loads(args: &Args) -> anyhow::Result<()> {
    let loads: Vec<&Load> = LOADS.iter().filter(|load| load.name.contains(&args.only)).collect();
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["ns CPU a row", "with", "without", "ratio"]);
    for load in loads {
        let [with, without] = load.measure()?;
        let figures = [with, without, with / without];
        table.add_row(std::iter::once(load.name.to_owned()).chain(figures.map(|it| format!("{it:.1}"))));
    }
    writeln!(io::stdout(), "{table}")?;
    Ok(())
}

/// Prints the figures of an encoding, each beside the committed one.
fn show(wire: &str, now: &Figures, last: &Figures) -> anyhow::Result<()> {
    let cases: Vec<_> = now.cases.iter().filter(|(case, _)| case.starts_with(wire)).collect();
    let Some((_, stages)) = cases.first() else { return Ok(()) };
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let heads = cases.iter().flat_map(|(case, _)| [case.as_str(), "was", "change"]);
    table.set_header(std::iter::once("instructions a row").chain(heads));
    for (stage, _) in stages {
        let mut row = vec![stage.clone()];
        for (case, _) in &cases {
            let (now, last) = (now.get(case, stage), last.get(case, stage));
            let shown = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.1}"));
            let change = now.zip(last).filter(|(_, last)| *last > 0.0);
            let change =
                change.map_or("-".to_owned(), |(now, last)| format!("{:+.1} %", 100.0 * (now / last - 1.0)));
            row.extend([shown(now), shown(last), change]);
        }
        table.add_row(row);
    }
    writeln!(io::stdout(), "{table}\n")?;
    Ok(())
}

/// The compiler's version, without the commit.
fn compiler() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("--version").output().context("rustc")?;
    let version = String::from_utf8(output.stdout)?;
    Ok(version.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}
