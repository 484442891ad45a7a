//! Every cost of forwarding beside its baseline, in one run: `make bench`.
//!
//! A sender and a reader on our own sockets, and between them Afterbay as a user runs it (the release binary, journal on),
//! a libzmq forwarder (pyzmq's `zmq.proxy`, which is C), or nothing. CPU is the proxy's own, from the kernel's accounting.
//! The machine's speed drifts: trust the ratios.

mod between;
mod load;
mod parts;
mod plugins;
mod traffic;

use anyhow::Context;
use between::Between;
use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;
use traffic::Traffic;

/// Measure what Afterbay costs, beside the same sockets with nothing between and with a libzmq forwarder between
#[derive(Parser)]
struct Args {
    /// The binary to measure [default: beside this one]
    #[arg(long, value_name = "FILE")]
    afterbay: Option<PathBuf>,
    /// How long each case is driven, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often each case is run; the median is shown
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only rows whose name contains this, such as "msgpack, 1024" or "latency"
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// One JSON object a row instead of tables
    #[arg(long)]
    json: bool,
}

/// One line of the result.
struct Row {
    name: String,
    figures: Vec<(&'static str, f64)>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let afterbay = match args.afterbay {
        Some(file) => file,
        None => std::env::current_exe()?.with_file_name("afterbay"),
    };
    anyhow::ensure!(
        afterbay.exists(),
        "{} is missing: cargo build --release -p afterbay",
        afterbay.display()
    );
    let time = Duration::try_from_secs_f64(args.seconds)?;
    let guests = guests()?;
    let cases = [
        Between::Nothing,
        Between::Libzmq,
        Between::Afterbay { binary: afterbay.clone(), plugin: None },
        Between::Afterbay { binary: afterbay, plugin: Some(guests.join("examples/nothing.wasm")) },
    ];

    let mut rows = Vec::new();
    for wire in ["msgpack", "pickle"] {
        for per_frame in [1, 64, 1024, 4096] {
            let name = format!("{wire}, {per_frame} rows a frame");
            if !name.contains(&args.only) {
                continue;
            }
            let traffic = Traffic::new(wire, per_frame)?;
            // Cases take turns, so that a machine that slows down slows all of them.
            let mut measured: Vec<Vec<load::Throughput>> = vec![Vec::new(); cases.len()];
            for _ in 0..args.runs {
                for (case, runs) in cases.iter().zip(&mut measured) {
                    runs.push(load::throughput(case, &traffic, time)?);
                }
            }
            let cpu = |case: usize| median(measured[case].iter().map(|run| run.cpu_ns_per_row));
            let rate = |case: usize| median(measured[case].iter().map(|run| run.rows_per_second));
            let row = Row {
                name,
                figures: vec![
                    ("afterbay ns CPU/row", cpu(2)),
                    ("libzmq ns CPU/row", cpu(1)),
                    ("CPU ratio", cpu(2) / cpu(1)),
                    ("plugin adds ns/row", cpu(3) - cpu(2)),
                    ("afterbay rows/s", rate(2)),
                    ("rows/s per core", 1e9 / cpu(2)),
                    ("direct rows/s", rate(0)),
                ],
            };
            show(&args.json, &row);
            rows.push(row);
        }
    }
    for wire in ["msgpack", "pickle"] {
        let name = format!("parts, {wire}, 1024 rows a frame");
        if name.contains(&args.only) {
            let parts = parts::measure(&Traffic::new(wire, 1024)?, time * 2)?;
            let row = Row {
                name,
                figures: vec![
                    ("decode ns/row", parts.decode),
                    ("outbox passes ns/row", parts.passes),
                    ("outbox joins ns/row", parts.waits),
                    ("join ns/row", parts.joins),
                    ("take ns/row", parts.takes),
                    ("join to decode", parts.joins / parts.decode),
                ],
            };
            show(&args.json, &row);
            rows.push(row);
        }
    }
    let name = "plugins, 1024 rows a batch".to_owned();
    if name.contains(&args.only) {
        let costs = plugins::measure(&guests, &examples()?, time * 2)?;
        let [one, two, four, eight] = costs.chains;
        let row = Row {
            name,
            figures: vec![
                ("native ns/row", costs.native),
                ("one ns/row", one),
                ("two ns/row", two),
                ("four ns/row", four),
                ("eight ns/row", eight),
                ("eight to one", eight / one),
                ("stop-on-loop ns/row", costs.loops),
            ],
        };
        show(&args.json, &row);
        rows.push(row);
    }
    let name = "parts, load snapshot".to_owned();
    if name.contains(&args.only) {
        let row = Row { name, figures: vec![("read ns", parts::snapshot(time)?)] };
        show(&args.json, &row);
        rows.push(row);
    }
    for per_frame in [1, 64, 1024] {
        let name = format!("latency, {per_frame} rows a frame");
        if !name.contains(&args.only) {
            continue;
        }
        let traffic = Traffic::new("msgpack", per_frame)?;
        let mut measured: Vec<Vec<load::Latency>> = vec![Vec::new(); 3];
        for _ in 0..args.runs {
            for (case, runs) in cases.iter().zip(&mut measured) {
                runs.push(load::latency(case, &traffic, time)?);
            }
        }
        let p50 = |case: usize| median(measured[case].iter().map(|run| run.p50_us));
        let p99 = |case: usize| median(measured[case].iter().map(|run| run.p99_us));
        let row = Row {
            name,
            figures: vec![
                ("direct p50 us", p50(0)),
                ("added p50 us", p50(2) - p50(0)),
                ("added p99 us", p99(2) - p99(0)),
                ("libzmq added p50 us", p50(1) - p50(0)),
                ("libzmq added p99 us", p99(1) - p99(0)),
                ("added p50 ratio", (p50(2) - p50(0)) / (p50(1) - p50(0))),
            ],
        };
        show(&args.json, &row);
        rows.push(row);
    }
    if !args.json {
        table(&rows);
    }
    Ok(())
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A row as soon as it is measured: the whole takes minutes.
fn show(json: &bool, row: &Row) {
    if *json {
        let figures: serde_json::Map<String, serde_json::Value> =
            row.figures.iter().map(|(name, figure)| ((*name).to_owned(), (*figure).into())).collect();
        println!("{}", serde_json::json!({"case": row.name, "figures": figures}));
    } else {
        let figures: Vec<String> =
            row.figures.iter().map(|(name, figure)| format!("{name} {figure:.1}")).collect();
        eprintln!("{}: {}", row.name, figures.join(", "));
    }
}

fn table(rows: &[Row]) {
    for rows in rows
        .chunk_by(|a, b| a.figures.iter().map(|(name, _)| name).eq(b.figures.iter().map(|(name, _)| name)))
    {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        let heads =
            rows.iter().take(1).flat_map(|row| row.figures.iter().map(|(name, _)| (*name).to_owned()));
        table.set_header(std::iter::once("case".to_owned()).chain(heads));
        for row in rows {
            let figures = row.figures.iter().map(|(_, figure)| format!("{figure:.1}"));
            table.add_row(std::iter::once(row.name.clone()).chain(figures));
        }
        println!("{table}\n");
    }
}

/// The plugins that are measured, built for release.
fn guests() -> anyhow::Result<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = afterbay_plugin_build::build(&root.join("guests"), &root.join("../target/guests"));
    built.context("guests")
}

/// The examples, built for release.
fn examples() -> anyhow::Result<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = afterbay_plugin_build::build(&root.join("examples"), &root.join("target/guests"));
    built.context("examples")
}
