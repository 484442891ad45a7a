//! Frames under a load that the usual traffic does not have: held rows, aborts, calls to services, drops, long requests. Each
//! case measures the same frames with and without its load: in CPU time, because plugins do not run under callgrind.

use crate::carried::World;
use crate::traffic::{id, sglang_frame};
use afterbay_config as config;
use afterbay_journal::reader::OperatorAbort;
use afterbay_runtime::{Grants, Host, HostOptions, Limits, Terms};
use afterbay_stream::PluginSetup;
use afterbay_wire::Layouts;
use afterbay_wire::synth::SynthWire;
use anyhow::Context;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rows that are measured.
const ROWS: u64 = 1 << 16;
/// The steps before the measured ones, so that rows are held and released evenly.
const BEGINNING: u64 = 8;
/// Frames that are measured with cold caches.
const COLD_FRAMES: u64 = 64;
/// More bytes than the caches of a server's processor have.
const CACHE_BYTES: usize = 128 << 20;
/// The runs of each case. The fastest is shown.
const RUNS: usize = 3;
/// The rows of each frame of the requests that wait beside the counted ones.
const WAITING_ROWS: usize = 1000;
/// The tokens for which the guest `holds` holds a row, and releases the held rows and holds this one.
const HOLD: i64 = 101;
const RELEASE_AND_HOLD: i64 = 107;

/// A load and the traffic that it is measured with.
pub struct Load {
    /// The name of the case.
    pub name: &'static str,
    /// The rows of a measured frame.
    pub rows: u64,
    /// The traffic with the load, and without.
    of: [Variant; 2],
}

#[derive(Clone)]
struct Variant {
    /// The guest and its settings.
    plugin: Option<(&'static str, &'static str)>,
    /// The tokens of the measured requests.
    id: fn(u64, u64) -> i64,
    /// The requests that live beside the measured ones, and their state.
    beside: (u64, Beside),
    /// The tokens of a request.
    tokens: u64,
    /// Whether each frame finds the caches filled with other data, as at 50 frames a second beside an engine.
    is_cold: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Running,
    Held,
    Aborted,
}

const PLAIN: Variant =
    Variant { plugin: None, id, beside: (0, Beside::Running), tokens: u64::MAX, is_cold: false };
const HOLDS: Option<(&str, &str)> = Some(("holds", r#"{"millis": 60}"#));
const HOLDS_LONG: Option<(&str, &str)> = Some(("holds", r#"{"millis": 600000}"#));
const ASKS: Option<(&str, &str)> = Some(("asks", r#"{"each_batch": true}"#));

/// The cases.
pub const LOADS: &[Load] = &[
    Load {
        name: "load.held.all.64",
        rows: 64,
        of: [
            Variant { plugin: HOLDS, id: |_, _| RELEASE_AND_HOLD, ..PLAIN },
            Variant { plugin: HOLDS, ..PLAIN },
        ],
    },
    Load {
        name: "load.held.time.64",
        rows: 64,
        of: [Variant { plugin: HOLDS, id: |_, _| HOLD, ..PLAIN }, Variant { plugin: HOLDS, ..PLAIN }],
    },
    Load {
        name: "load.held.tenth.1024",
        rows: 1024,
        of: [
            Variant {
                plugin: HOLDS,
                id: |row, step| if (row + step) % 10 == 0 { HOLD } else { id(row, step) },
                ..PLAIN
            },
            Variant { plugin: HOLDS, ..PLAIN },
        ],
    },
    Load {
        name: "load.held.20000.64",
        rows: 64,
        of: [
            Variant { plugin: HOLDS_LONG, beside: (20_000, Beside::Held), ..PLAIN },
            Variant { plugin: HOLDS_LONG, beside: (20_000, Beside::Running), ..PLAIN },
        ],
    },
    Load {
        name: "load.aborts.2000.1024",
        rows: 1024,
        of: [
            Variant { beside: (2_000, Beside::Aborted), ..PLAIN },
            Variant { beside: (2_000, Beside::Running), ..PLAIN },
        ],
    },
    Load {
        name: "load.aborts.20000.1024",
        rows: 1024,
        of: [
            Variant { beside: (20_000, Beside::Aborted), ..PLAIN },
            Variant { beside: (20_000, Beside::Running), ..PLAIN },
        ],
    },
    Load {
        name: "load.calls.200000.64",
        rows: 64,
        of: [
            Variant { plugin: ASKS, beside: (200_000, Beside::Running), ..PLAIN },
            Variant { plugin: ASKS, ..PLAIN },
        ],
    },
    Load {
        name: "load.calls.64",
        rows: 64,
        of: [Variant { plugin: ASKS, ..PLAIN }, Variant { plugin: HOLDS, ..PLAIN }],
    },
    Load {
        name: "load.drops.4096",
        rows: 4096,
        of: [
            Variant { plugin: Some(("reports", "{}")), ..PLAIN },
            Variant { plugin: Some(("judges", r#"{"action": "drop"}"#)), ..PLAIN },
        ],
    },
    Load { name: "load.tokens.512.64", rows: 64, of: [Variant { tokens: 512, ..PLAIN }, SHORT] },
    Load { name: "load.tokens.4096.64", rows: 64, of: [Variant { tokens: 4096, ..PLAIN }, SHORT] },
    Load { name: "load.cold.64", rows: 64, of: [COLD, PLAIN] },
    Load { name: "load.cold.1024", rows: 1024, of: [COLD, PLAIN] },
];
const COLD: Variant = Variant { is_cold: true, ..PLAIN };
/// The length of the requests in the usual cases.
const SHORT: Variant = Variant { tokens: 32, ..PLAIN };

impl Load {
    /// The CPU time of a row in nanoseconds, with the load and without.
    pub fn measure(&self) -> anyhow::Result<[f64; 2]> {
        let mut fastest = [f64::INFINITY; 2];
        for _ in 0..RUNS {
            for (variant, fastest) in self.of.iter().zip(&mut fastest) {
                *fastest = fastest.min(variant.run(self.rows)? / self.rows as f64);
            }
        }
        Ok(fastest)
    }
}

impl Variant {
    /// The CPU time of a frame in nanoseconds.
    fn run(&self, rows: u64) -> anyhow::Result<f64> {
        let plugins = self.plugin.map(|(guest, settings)| plugin(guest, settings)).transpose()?;
        let mut world = World::start("sglang", &Layouts::builtin(), plugins.into_iter().collect())?;
        let (beside, state) = self.beside;
        let beside: Vec<u64> = (rows..rows + beside).collect();
        for requests in beside.chunks(WAITING_ROWS) {
            let token = |row, step| if state == Beside::Held { HOLD } else { id(row, step) };
            let requests = requests[0]..requests[0] + requests.len() as u64;
            world.settle(&sglang_frame(SynthWire::Msgpack, requests.clone(), 1, u64::MAX, token)?)?;
            if state == Beside::Aborted {
                requests.for_each(|request| abort(&world, request));
            }
        }
        let (beginning, frames) = match self.tokens {
            u64::MAX if self.is_cold => (BEGINNING, COLD_FRAMES),
            u64::MAX => (BEGINNING, ROWS / rows),
            tokens => (0, tokens * (ROWS / rows).div_ceil(tokens)),
        };
        let mut other = vec![0_u8; if self.is_cold { CACHE_BYTES } else { 0 }];
        let mut cpu = Duration::ZERO;
        for step in 0..beginning + frames {
            let of_request = step % self.tokens + 1;
            let frame = sglang_frame(SynthWire::Msgpack, 0..rows, of_request, self.tokens, self.id)?;
            other.iter_mut().step_by(64).for_each(|byte| *byte = black_box(*byte).wrapping_add(1));
            let of_frame = world.settle(&frame)?;
            cpu += if step < beginning { Duration::ZERO } else { of_frame };
        }
        Ok(cpu.as_nanos() as f64 / frames as f64)
    }
}

/// Aborts a request as an operator does whose abort the scheduler has not answered yet.
fn abort(world: &World, request: u64) {
    let (handle, rid) = (world.stream.handle(), crate::traffic::rid(request));
    world.stream.handle().request_status(&rid.clone(), move |status| {
        let Some(live) = status.live else { return };
        handle.record_abort(&rid, live.number, OperatorAbort::Expected, || {});
    });
}

/// Starts a test guest.
fn plugin(guest: &'static str, settings: &str) -> anyhow::Result<PluginSetup> {
    let built = guests()?;
    let cache_dir = Some(built.join("compiled"));
    let host = Host::new(HostOptions { cache_dir, ..HostOptions::default() })?;
    let file = built.join("examples").join(format!("{guest}.wasm"));
    let bytes = std::fs::read(&file).with_context(|| file.display().to_string())?;
    let limits =
        Limits { deadline: Duration::from_secs(1), hold: Duration::from_secs(600), ..Limits::default() };
    let grants = Grants { call: guest == "asks", ..Grants::default() };
    let component = host.load(guest, &bytes, Terms { limits, grants, ..Terms::default() })?;
    let config = config::Plugin::new(guest.parse()?, config::Component::File(file));
    let instance = component.instantiate(settings)?;
    Ok(PluginSetup { config, settings: settings.to_owned(), instance, awaits: None })
}

/// Builds the test guests, unless they are built.
fn guests() -> anyhow::Result<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    afterbay_plugin_build::build(&tests.join("guests"), &tests.join("../target/guests")).context("guests")
}
