//! Every cost of forwarding beside its baseline, in one run: `make bench`.
//!
//! Afterbay's own sockets send and read. Between them is Afterbay (the release binary with a journal), a libzmq forwarder (pyzmq's
//! `zmq.proxy`, written in C), or nothing. CPU is the time of the proxy's process. The machine's speed drifts, so trust the ratios.

mod clients;
mod fault_storm;
mod figures;
mod forwarding;
mod guards;
mod kept_bytes;
mod kept_frames;
mod parts;
mod peers;
mod plugins;
mod proxy;
mod saved_to_live;
mod scale;
mod swaps;
mod timed_stream;

use afterbay_cost::traffic::Traffic;
use anyhow::Context;
use clap::Parser;
use figures::median;
use proxy::{JournalStorage, ProxyCase};
use std::io::ErrorKind::BrokenPipe;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Measure the cost of Afterbay beside that of a libzmq forwarder and of a direct connection
#[derive(Parser)]
struct Args {
    /// The binary to measure [default: afterbay in the directory of this program]
    #[arg(long, value_name = "FILE")]
    afterbay: Option<PathBuf>,
    /// The seconds that each case is driven
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The number of runs of each case; the median is shown
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Tokens per request, except in the case "swaps". The cost of a request's beginning and end is spread over its rows
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=TOKENS_MAX))]
    tokens: u64,
    /// Only the cases whose name contains TEXT, such as "msgpack, 1024", "vllm", "latency", "swaps" or "scale"
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print one JSON object per case instead of tables
    #[arg(long)]
    json: bool,
}

/// The most tokens of a request. All its frames are made in advance, about 90 KB each.
const TOKENS_MAX: u64 = 4096;

/// One case of the result.
struct TableRow {
    name: String,
    figures: Vec<(&'static str, f64)>,
}

/// The options and the results so far.
struct Bench {
    args: Args,
    afterbay: PathBuf,
    time: Duration,
    rows: Vec<TableRow>,
}

fn main() -> anyhow::Result<()> {
    match run(Args::parse()) {
        // The reader of standard output closed it early.
        Err(error) if error.downcast_ref::<io::Error>().map(io::Error::kind) == Some(BrokenPipe) => Ok(()),
        done => done,
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let afterbay = match &args.afterbay {
        Some(file) => file.clone(),
        None => std::env::current_exe()?.with_file_name("afterbay"),
    };
    anyhow::ensure!(
        afterbay.exists(),
        "{} is missing: cargo build --release -p afterbay",
        afterbay.display()
    );
    let time = Duration::try_from_secs_f64(args.seconds)?;
    let mut bench = Bench { args, afterbay, time, rows: Vec::new() };
    bench.forwarding()?;
    bench.plugin_in_path()?;
    bench.parts()?;
    bench.kept_bytes()?;
    bench.kept_frames()?;
    bench.plugins()?;
    bench.guards()?;
    bench.latency()?;
    bench.swaps()?;
    bench.storms()?;
    bench.live()?;
    bench.scale()?;
    bench.clients()?;
    if !bench.args.json {
        table(&bench.rows)?;
    }
    Ok(())
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.args.only)
    }

    fn row(&mut self, name: String, figures: Vec<(&'static str, f64)>) -> io::Result<()> {
        let row = TableRow { name, figures };
        show(self.args.json, &row)?;
        self.rows.push(row);
        Ok(())
    }

    /// A direct connection, libzmq and Afterbay.
    fn cases(&self, wire: &str) -> [ProxyCase; 3] {
        let afterbay = ProxyCase::Afterbay {
            binary: self.afterbay.clone(),
            engine: if wire == "vllm" { "vllm" } else { "sglang" },
            plugin: None,
            journal: JournalStorage::OnDisk,
        };
        [ProxyCase::Nothing, ProxyCase::Libzmq, afterbay]
    }

    fn forwarding(&mut self) -> anyhow::Result<()> {
        for wire in ["msgpack", "pickle", "vllm"] {
            let cases = self.cases(wire);
            for per_frame in [1, 64, 1024, 4096] {
                let name = format!("{wire}, {per_frame} rows a frame");
                if !self.wants(&name) {
                    continue;
                }
                let traffic = Traffic::new(wire, per_frame, self.args.tokens)?;
                // The cases take turns, so that a slow machine slows all of them.
                let mut measured: Vec<Vec<forwarding::Throughput>> = vec![Vec::new(); cases.len()];
                for _ in 0..self.args.runs {
                    for (case, runs) in cases.iter().zip(&mut measured) {
                        runs.push(forwarding::throughput(case, &traffic, self.time)?);
                    }
                }
                let cpu = |case: usize| median(measured[case].iter().map(|run| run.cpu_ns_per_row));
                let rate = |case: usize| median(measured[case].iter().map(|run| run.rows_per_second));
                let figures = vec![
                    ("afterbay ns CPU/row", cpu(2)),
                    ("libzmq ns CPU/row", cpu(1)),
                    ("CPU ratio", cpu(2) / cpu(1)),
                    ("afterbay rows/s", rate(2)),
                    ("rows/s per core", 1e9 / cpu(2)),
                    ("direct rows/s", rate(0)),
                ];
                self.row(name, figures)?;
            }
        }
        Ok(())
    }

    /// The cost that a plugin adds to the path. The journal is in memory, because the noise of a disk is larger than that cost.
    fn plugin_in_path(&mut self) -> anyhow::Result<()> {
        let journal = JournalStorage::InMemory;
        let binary = self.afterbay.clone();
        let afterbay =
            |plugin| ProxyCase::Afterbay { binary: binary.clone(), engine: "sglang", plugin, journal };
        // A plugin is also called for a request's beginning and end: longer requests spread that cost over more rows.
        let mut lengths = vec![self.args.tokens, (8 * self.args.tokens).min(TOKENS_MAX)];
        lengths.dedup();
        for tokens in lengths {
            let dir = journal.within().display();
            let name = format!("plugin, 1024 rows a frame, {tokens} tokens a request, journal in {dir}");
            if !self.wants(&name) {
                continue;
            }
            let [without, with] = [None, Some(guests()?.join("examples/nothing.wasm"))].map(&afterbay);
            let traffic = Traffic::new("msgpack", 1024, tokens)?;
            let mut pairs = Vec::new();
            for _ in 0..self.args.runs {
                let turns = forwarding::in_turns([&without, &with], &traffic, self.time)?;
                let cpu = |case: usize| median(turns.iter().map(|turn| turn[case].cpu_ns_per_row));
                pairs.push((cpu(0), cpu(1)));
            }
            let figures = vec![
                ("without ns CPU/row", median(pairs.iter().map(|pair| pair.0))),
                ("with ns CPU/row", median(pairs.iter().map(|pair| pair.1))),
                ("plugin adds ns/row", median(pairs.iter().map(|(without, with)| with - without))),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn parts(&mut self) -> anyhow::Result<()> {
        let vllm = [1, 64, 1024].map(|rows| ("vllm", rows));
        for (wire, per_frame) in [("msgpack", 1024), ("pickle", 1024)].into_iter().chain(vllm) {
            let name = format!("parts, {wire}, {per_frame} rows a frame");
            if self.wants(&name) {
                let parts = parts::measure(&Traffic::new(wire, per_frame, self.args.tokens)?, self.time * 2)?;
                let figures = vec![
                    ("decode ns/row", parts.decode),
                    ("outbox passes ns/row", parts.passes),
                    ("outbox joins ns/row", parts.waits),
                    ("join ns/row", parts.joins),
                    ("take ns/row", parts.takes),
                    ("join to decode", parts.joins / parts.decode),
                ];
                self.row(name, figures)?;
            }
        }
        let name = "parts, load snapshot".to_owned();
        if self.wants(&name) {
            let read = parts::snapshot(self.time)?;
            self.row(name, vec![("read ns", read)])?;
        }
        Ok(())
    }

    /// Reading frames so that received bytes outlive the process, beside reading them into private memory.
    fn kept_bytes(&mut self) -> anyhow::Result<()> {
        for size in kept_bytes::SIZES {
            let name = format!("kept bytes, {} KiB a frame", size >> 10);
            if self.wants(&name) {
                let costs = kept_bytes::measure(size, self.time)?;
                let peeked = costs.peeked.unwrap_or(f64::NAN);
                let figures = vec![
                    ("private ns/frame", costs.private),
                    ("peeked ns/frame", peeked),
                    ("mapped ns/frame", costs.mapped),
                    ("peeked to private", peeked / costs.private),
                    ("mapped to private", costs.mapped / costs.private),
                ];
                self.row(name, figures)?;
            }
        }
        Ok(())
    }

    /// Writing frames so that they outlive the process, beside writing them from private memory.
    fn kept_frames(&mut self) -> anyhow::Result<()> {
        for size in kept_frames::SIZES {
            let name = format!("kept frames, {} KiB a frame", size >> 10);
            if self.wants(&name) {
                let costs = kept_frames::measure(size, self.time)?;
                let figures = vec![
                    ("private ns/frame", costs.private),
                    ("mapped ns/frame", costs.mapped),
                    ("mapped to private", costs.mapped / costs.private),
                ];
                self.row(name, figures)?;
            }
        }
        Ok(())
    }

    fn plugins(&mut self) -> anyhow::Result<()> {
        let name = "plugins, 1024 rows a batch".to_owned();
        if self.wants(&name) {
            let costs = plugins::measure(&guests()?, &examples()?, self.time * 2)?;
            let [one, two, four, eight] = costs.chains;
            let figures = vec![
                ("native ns/row", costs.native),
                ("one ns/row", one),
                ("two ns/row", two),
                ("four ns/row", four),
                ("eight ns/row", eight),
                ("eight to one", eight / one),
                ("stop-on-loop ns/row", costs.loops),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    /// Each bundled plugin beside the floor, which says nothing.
    fn guards(&mut self) -> anyhow::Result<()> {
        let cases = guards::CASES.iter().map(|case| (case, format!("guard, {}", case.name())));
        let cases: Vec<_> = cases.filter(|(_, name)| self.wants(name)).collect();
        if cases.is_empty() {
            return Ok(());
        }
        let bench = guards::Guards::new()?;
        for (case, name) in cases {
            let guards::GuardCosts { floor, quiet, finds } = bench.measure(case, self.time)?;
            // A plugin that acts on every row has no quiet rows.
            let quiet = quiet.map_or([f64::NAN; 3], |quiet| [quiet.ns, quiet.cpu_ns, quiet.ns / floor.ns]);
            let figures = vec![
                ("floor ns/row", floor.ns),
                ("quiet ns/row", quiet[0]),
                ("quiet ns CPU/row", quiet[1]),
                ("quiet to floor", quiet[2]),
                ("finds ns/row", finds.ns),
                ("finds ns CPU/row", finds.cpu_ns),
                ("finds to floor", finds.ns / floor.ns),
                ("verdicts %", 100.0 * finds.verdicts),
                ("held %", 100.0 * finds.held),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn latency(&mut self) -> anyhow::Result<()> {
        let cases = self.cases("msgpack");
        for per_frame in [1, 64, 1024] {
            let name = format!("latency, {per_frame} rows a frame");
            if !self.wants(&name) {
                continue;
            }
            let traffic = Traffic::new("msgpack", per_frame, self.args.tokens)?;
            let mut measured: Vec<Vec<forwarding::Latency>> = vec![Vec::new(); cases.len()];
            for _ in 0..self.args.runs {
                for (case, runs) in cases.iter().zip(&mut measured) {
                    runs.push(forwarding::latency(case, &traffic, self.time)?);
                }
            }
            let p50 = |case: usize| median(measured[case].iter().map(|run| run.p50_us));
            let p99 = |case: usize| median(measured[case].iter().map(|run| run.p99_us));
            let figures = vec![
                ("direct p50 us", p50(0)),
                ("added p50 us", p50(2) - p50(0)),
                ("added p99 us", p99(2) - p99(0)),
                ("libzmq added p50 us", p50(1) - p50(0)),
                ("libzmq added p99 us", p99(1) - p99(0)),
                ("added p50 ratio", (p50(2) - p50(0)) / (p50(1) - p50(0))),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn swaps(&mut self) -> anyhow::Result<()> {
        let name = "swaps, 1024 rows a batch";
        if !self.wants(name) {
            return Ok(());
        }
        let swaps = swaps::measure(&self.afterbay, &examples()?, &swaps::traffic(1024)?, self.time)?;
        let figures = vec![
            ("swaps", swaps.swaps),
            ("without: p50 ms", swaps.without.p50),
            ("with: p50 ms", swaps.with.p50),
            ("without: longest ms", swaps.without.longest),
            ("with: longest ms", swaps.with.longest),
            ("longest, ratio", swaps.with.longest / swaps.without.longest),
            ("without: over 5 ms", swaps.without.over),
            ("with: over 5 ms", swaps.with.over),
            ("stood for a swap: longest ms", swaps.stood_longest),
            ("over 5 ms", swaps.stood_over),
        ];
        Ok(self.row(name.to_owned(), figures)?)
    }

    fn storms(&mut self) -> anyhow::Result<()> {
        for storm in fault_storm::cases() {
            let name = format!("storm, {}, {} rows a batch", storm.name, fault_storm::ROWS);
            if !self.wants(&name) {
                continue;
            }
            let traffic = Traffic::new("msgpack", fault_storm::ROWS, self.args.tokens)?;
            let guests = guests()?;
            let calm = storm.calm().measure(&self.afterbay, &guests, &traffic, self.time)?;
            let seen = storm.measure(&self.afterbay, &guests, &traffic, self.time)?;
            let figures = vec![
                ("faults", seen.faults),
                ("beside: p99 ms", seen.beside_p99),
                ("beside, calm: p99 ms", calm.beside_p99),
                ("beside, ratio", seen.beside_p99 / calm.beside_p99),
                ("same: p99 ms", seen.same_p99),
                ("same, calm: p99 ms", calm.same_p99),
                ("memory grew KiB", seen.memory_grew_kib),
                ("calm: grew KiB", calm.memory_grew_kib),
            ];
            self.row(name, figures)?;
        }
        let calls = fault_storm::calls(guests, self.time, |name| self.wants(name))?;
        for fault_storm::CallTimes { name, p50, p99, longest } in calls {
            let figures = vec![("CPU ms, p50", p50), ("CPU ms, p99", p99), ("CPU ms, longest", longest)];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn clients(&mut self) -> anyhow::Result<()> {
        for missing in [8, 256] {
            let name = format!("clients, {} come back at once for {missing} tokens", clients::CLIENTS);
            if !self.wants(&name) {
                continue;
            }
            let returns = clients::measure(&self.afterbay, missing)?;
            let figures = vec![
                ("p50 ms", returns.p50_ms),
                ("p99 ms", returns.p99_ms),
                ("CPU ms a client", returns.cpu_ms),
                ("a scan ms", returns.scan_ms),
                ("clients for a scan", returns.scan_ms / returns.cpu_ms),
                ("follower MiB", returns.resident_mib),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn live(&mut self) -> anyhow::Result<()> {
        let name = "saved to live".to_owned();
        if self.wants(&name) {
            let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/bench");
            std::fs::create_dir_all(&target)?;
            let saves = saved_to_live::measure(&self.afterbay, &target.canonicalize()?, self.args.runs)?;
            let built = median(saves.iter().map(|save| save.built));
            let live = median(saves.iter().map(|save| save.live));
            self.row(name, vec![("built ms", built), ("live ms", live), ("then ms", live - built)])?;
        }
        Ok(())
    }
}

/// Prints a case as soon as it is measured, because the whole run takes minutes.
fn show(json: bool, row: &TableRow) -> io::Result<()> {
    if json {
        let figures: serde_json::Map<String, serde_json::Value> =
            row.figures.iter().map(|(name, figure)| ((*name).to_owned(), (*figure).into())).collect();
        writeln!(io::stdout(), "{}", serde_json::json!({"case": row.name, "figures": figures}))
    } else {
        let figures: Vec<String> =
            row.figures.iter().map(|(name, figure)| format!("{name} {}", shown(*figure))).collect();
        writeln!(io::stderr(), "{}: {}", row.name, figures.join(", "))
    }
}

fn table(rows: &[TableRow]) -> io::Result<()> {
    for rows in rows
        .chunk_by(|a, b| a.figures.iter().map(|(name, _)| name).eq(b.figures.iter().map(|(name, _)| name)))
    {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        let heads =
            rows.iter().take(1).flat_map(|row| row.figures.iter().map(|(name, _)| (*name).to_owned()));
        table.set_header(std::iter::once("case".to_owned()).chain(heads));
        for row in rows {
            let figures = row.figures.iter().map(|(_, figure)| shown(*figure));
            table.add_row(std::iter::once(row.name.clone()).chain(figures));
        }
        writeln!(io::stdout(), "{table}\n")?;
    }
    Ok(())
}

/// A figure with one decimal, or a dash where a case has none.
fn shown(figure: f64) -> String {
    if figure.is_nan() { "-".to_owned() } else { format!("{figure:.1}") }
}

/// Builds the test guests for release, unless they are built.
fn guests() -> anyhow::Result<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = afterbay_plugin_build::build(&root.join("guests"), &root.join("../target/guests"));
    built.context("guests")
}

/// Builds the examples for release.
fn examples() -> anyhow::Result<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = afterbay_plugin_build::build(&root.join("examples"), &root.join("target/guests"));
    built.context("examples")
}
