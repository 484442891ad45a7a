//! `afterbay plugin bench`: measures the time and fuel that a row costs, beside a plugin that does nothing.

use crate::plugin_args::{self, PluginArgs, UsageError};
use crate::synthetic_load::SyntheticLoad;
use afterbay_config::bounds;
use afterbay_plugin_loader::{host_options, plugin_host};
use afterbay_runtime::{Columns, Component, Host, HostOptions, Limits, Terms};
use afterbay_terminal::seconds;
use afterbay_terminal::{self as screen, Table};
use anyhow::Context;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// The plugin that does nothing.
const FLOOR: &str = "builtin:floor";
/// The measured numbers of rows in a batch, up to `--rows`.
const SIZES: [usize; 5] = [1, 16, 64, 256, 1024];
/// Batches of one series. Each series has a fresh instance, so that the plugin's state does not grow from series to series.
const BATCHES: u64 = 64;
/// Most ids of a batch. The ids of all batches are in memory at once.
const IDS_MAX: u64 = 1 << 17;
/// Series for each size. The result is their median.
const SERIES: usize = 9;
/// Deadline of a call, and of a start, while time is measured: the longest that a configuration allows.
const MEASURING: Duration = bounds::PLUGIN_DEADLINE.1;
/// The proposed deadline is this many times the longest call.
const HEADROOM: u32 = 4;
/// Deadline of a call, and of a start, while fuel is counted.
const COUNTING: Duration = Duration::from_secs(60);

/// Measure the cost of a row: nanoseconds, and fuel, which is the same on every machine
///
/// Each batch size is measured in 9 series of 64 batches, with a fresh instance for each, alternating with a plugin that gets the
/// same columns and does nothing (the floor: the call and the copying). The time is the median of the series. Fuel is about one
/// for each WebAssembly instruction; it is counted in a separate run, and depends on the version of wasmtime. Exits 1 if a row of
/// the largest batch costs more than --max-fuel or --max-ns, a call exceeds the deadline, or the plugin faults.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin bench stop_on_loop.wasm\n  afterbay plugin bench target/wasm32-wasip2/release/stop_on_loop.wasm --rows 256 --max-fuel 400"
)]
pub(crate) struct Args {
    #[command(flatten)]
    given: PluginArgs,
    /// Rows of the largest batch
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    rows: u32,
    /// New ids of each row; at most 131072 in a batch
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

/// The results for one batch size.
struct Measured {
    rows: usize,
    ns: u64,
    floor_ns: u64,
    fuel: u64,
    floor_fuel: u64,
    /// Verdicts in one series.
    verdicts: u64,
    /// Processor time of the longest call.
    longest: Duration,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let ids = u64::from(args.rows) * u64::from(args.ids);
    if ids > IDS_MAX {
        let why = format!("--rows and --ids make batches of {ids} ids, at most {IDS_MAX} are allowed");
        return Err(UsageError(why).into());
    }
    let (source, floor) = (args.given.source()?, plugin_args::find(FLOOR, std::path::Path::new(""))?);
    let (terms, settings) = (args.given.terms()?, args.given.terms.settings()?);
    let serving = plugin_host()?;
    let counting = Host::new(HostOptions { counts_fuel: true, ..host_options() })?;
    let with_deadline = |deadline: Duration| {
        let limits = Limits { deadline, start_deadline: deadline, ..terms.limits.clone() };
        Terms { limits, ..terms.clone() }
    };
    let (measuring, patient) = (with_deadline(MEASURING), with_deadline(COUNTING));
    let subject = Subject {
        timed: source.load(&serving, measuring.clone())?,
        counted: source.load(&counting, patient.clone())?,
        settings,
    };
    let Subject { timed, settings, .. } = &subject;
    let starts = timed.instantiate(settings);
    starts.map_err(|error| anyhow::Error::msg(plugin_args::not_started(timed, settings, &error)))?;
    let floor = Subject {
        timed: floor.load(&serving, measuring)?,
        counted: floor.load(&counting, patient)?,
        settings: "{}".to_owned(),
    };
    let largest = args.rows as usize;
    let sizes = SIZES.into_iter().filter(|size| *size < largest).chain([largest]);
    let measured = sizes
        .map(|rows| {
            let measured = measure(&subject, &floor, &SyntheticLoad::new(rows, args.ids as usize));
            measured.with_context(|| format!("batches of {rows} rows"))
        })
        .collect::<anyhow::Result<Vec<Measured>>>()?;
    let mut over = measured.last().map_or(Vec::new(), |last| over(args, last));
    let (longest, deadline) = (longest(&measured), terms.limits.deadline);
    if longest > deadline {
        over.push(format!(
            "a call took {} of processor time, the deadline is {deadline:?}",
            seconds(longest)
        ));
    }
    match args.json {
        true => screen::say_json(&json(&subject.timed, args, &measured, &over)),
        false => print(&subject.timed, &measured, &over)?,
    }
    Ok(if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The exceeded limits, in words.
fn over(args: &Args, last: &Measured) -> Vec<String> {
    let limits = [("fuel", last.fuel, args.max_fuel), ("ns", last.ns, args.max_ns)];
    let over = limits.into_iter().filter_map(|(what, cost, limit)| {
        let limit = limit.filter(|limit| cost > *limit)?;
        Some(format!("a row of {} costs {cost} {what}, at most {limit} are allowed", last.rows))
    });
    over.collect()
}

/// A plugin, compiled for timing and for counting fuel.
struct Subject {
    timed: Component,
    counted: Component,
    settings: String,
}

/// Measures one batch size. The floor gets the columns that the plugin asks for, so that the same amount is copied.
fn measure(subject: &Subject, floor: &Subject, load: &SyntheticLoad) -> anyhow::Result<Measured> {
    load.with_columns(BATCHES, subject.timed.description().columns, |columns| {
        let (mut times, mut floors) = (Vec::new(), Vec::new());
        let (mut verdicts, mut longest) = (0, Duration::ZERO);
        for _ in 0..SERIES {
            let took = load.timed(&subject.timed, &subject.settings, columns)?;
            times.push(took.all);
            (verdicts, longest) = (took.verdicts, longest.max(took.longest));
            floors.push(load.timed(&floor.timed, &floor.settings, columns)?.all);
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
            fuel: fuel(subject, load, columns)?.div_ceil(all),
            floor_fuel: fuel(floor, load, columns)?.div_ceil(all),
            verdicts,
            longest,
        })
    })
}

/// The fuel of one series.
fn fuel(subject: &Subject, load: &SyntheticLoad, columns: &[Columns<'_>]) -> anyhow::Result<u64> {
    let mut plugin = load.started(&subject.counted, &subject.settings)?;
    let before = plugin.fuel_used().unwrap_or(0);
    for columns in columns {
        plugin.process(columns)?;
    }
    Ok(plugin.fuel_used().unwrap_or(0).saturating_sub(before))
}

/// The longest call of all sizes.
fn longest(measured: &[Measured]) -> Duration {
    measured.iter().map(|it| it.longest).max().unwrap_or_default()
}

/// The proposed deadline: [`HEADROOM`] times the longest call, rounded up to 1, 2 or 5 of a unit, within the bounds of a
/// configuration and not below the default.
fn proposed(longest: Duration) -> Duration {
    let (_, most) = bounds::PLUGIN_DEADLINE;
    let wanted = (longest * HEADROOM).max(Limits::default().deadline);
    let mut unit = Duration::from_millis(1);
    loop {
        for steps in [1, 2, 5] {
            if unit * steps >= wanted || unit * steps >= most {
                return (unit * steps).min(most);
            }
        }
        unit *= 10;
    }
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
        "longest_call_us": u64::try_from(longest(measured).as_micros()).unwrap_or(u64::MAX),
        "proposed_deadline": format!("{:?}", proposed(longest(measured))),
        "sizes": sizes.collect::<Vec<_>>(),
    })
}

fn print(component: &Component, measured: &[Measured], over: &[String]) -> anyhow::Result<()> {
    let said = component.description();
    screen::say(format!(
        "{} {}, {BATCHES} batches of each size; floor: a plugin that does nothing",
        said.name, said.version
    ));
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
    let longest = longest(measured);
    screen::say(format!("the longest call took {} of processor time", seconds(longest)));
    screen::say(format!("proposed: limits = {{ deadline = \"{:?}\" }}", proposed(longest)));
    for problem in over {
        screen::say(screen::bad(problem.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_proposed_with_room_above_the_longest_call_within_what_a_configuration_takes() {
        let micros = Duration::from_micros;
        for (longest, deadline) in [
            (micros(0), micros(2_000)),
            (micros(500), micros(2_000)),
            (micros(501), micros(5_000)),
            (micros(6_000), micros(50_000)),
            (micros(30_000), micros(200_000)),
            (micros(9_000_000), micros(10_000_000)),
        ] {
            assert_eq!(proposed(longest), deadline, "{longest:?}");
        }
    }
}
