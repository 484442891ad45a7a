//! The waits of batches while their plugin is swapped every 200 ms, alternately for another component and for other settings.

use crate::figures::percentile_ms;
use crate::proxy::{JournalStorage, RunningProxy, run, stream};
use crate::timed_stream::{Pace, TimedStream};
use afterbay_cost::traffic::Traffic;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(200);
/// The time of one turn with or without swaps. The turns alternate, so that a slow machine slows both.
const TURN: Duration = Duration::from_secs(2);
/// The longest time of a swap.
const SWAP_MAX: Duration = Duration::from_secs(20);
/// Longer waits are counted.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Tokens of a request: at full load each request lives for more than one swap.
const STEPS: u64 = 1024;

/// The waits with and without swaps, in milliseconds.
pub(crate) struct SwapWaits {
    pub(crate) swaps: f64,
    pub(crate) without: Waits,
    pub(crate) with: Waits,
    /// The longest pause for a swap that the stream reports, rounded up to a bound of its histogram, in milliseconds.
    pub(crate) stood_longest: f64,
    /// The number of pauses over 5 ms.
    pub(crate) stood_over: f64,
}

pub(crate) struct Waits {
    pub(crate) p50: f64,
    pub(crate) longest: f64,
    /// The number of waits over 5 ms.
    pub(crate) over: f64,
}

impl Waits {
    fn new(mut waits: Vec<Duration>) -> Waits {
        waits.sort_unstable();
        let over = waits.iter().filter(|wait| **wait > WAIT_MAX).count() as f64;
        Waits { p50: percentile_ms(&waits, 0.5), longest: percentile_ms(&waits, 1.0), over }
    }
}

/// The traffic of this measurement.
pub(crate) fn traffic(rows: u64) -> anyhow::Result<Traffic> {
    Traffic::new("msgpack", rows, STEPS)
}

/// Drives full load for `time` with swaps and for `time` without. A lost or repeated token is an error.
pub(crate) fn measure(
    binary: &Path,
    examples: &Path,
    traffic: &Traffic,
    time: Duration,
) -> anyhow::Result<SwapWaits> {
    let dir = tempfile::Builder::new().prefix("afb").tempdir_in("/tmp")?;
    let [ingress, reader] = ["in", "out"].map(|name| format!("ipc://{}/{name}", dir.path().display()));
    let swapped = Swapped {
        dir: dir.path(),
        ingress: &ingress,
        reader: &reader,
        source: std::fs::read(examples.join("stop_on_loop.wasm"))?,
    };
    swapped.install(0)?;
    let running = RunningProxy::afterbay(
        &mut run(binary),
        dir.path(),
        JournalStorage::OnDisk,
        &swapped.stream(0),
        &ingress,
    )?;
    let mut line = TimedStream::start(&ingress, &reader, traffic)?;
    let measured = swapped.by_turns(&running, &mut line, time);
    let (swaps, without, with) = running.explain(measured)?;
    let (stood_longest, stood_over) = running.explain(stood(&running))?;
    running.explain(swapped.check_balance(&running, line.sent(), traffic.rows_per_frame, swaps))?;
    running.stop()?;
    line.end()?;
    Ok(SwapWaits {
        swaps: swaps as f64,
        without: Waits::new(without),
        with: Waits::new(with),
        stood_longest,
        stood_over,
    })
}

/// The longest pause of the stream for a swap, in milliseconds, and the number of pauses over 5 ms.
fn stood(running: &RunningProxy) -> anyhow::Result<(f64, f64)> {
    let bounds = running.buckets("afterbay_change_seconds_bucket{stream=\"bench\",le=\"", "\"}")?;
    let all = bounds.last().map_or(0.0, |(_, count)| *count);
    let longest = bounds.iter().find(|(_, count)| *count == all).map_or(f64::NAN, |(bound, _)| bound * 1e3);
    let within = bounds.iter().find(|(bound, _)| *bound >= WAIT_MAX.as_secs_f64());
    Ok((longest, within.map_or(0.0, |(_, count)| all - count)))
}

struct Swapped<'a> {
    dir: &'a Path,
    ingress: &'a str,
    reader: &'a str,
    source: Vec<u8>,
}

/// The number of swaps, the waits without swaps, and the waits with swaps.
type Turns = (u64, Vec<Duration>, Vec<Duration>);

impl Swapped<'_> {
    fn by_turns(
        &self,
        running: &RunningProxy,
        line: &mut TimedStream<'_>,
        time: Duration,
    ) -> anyhow::Result<Turns> {
        let (mut swaps, mut without, mut with) = (0, Vec::new(), Vec::new());
        let warm = Instant::now();
        line.drive(Pace::Full, || warm.elapsed() > TURN / 4)?;
        let mut left = time;
        while !left.is_zero() {
            let turn = left.min(TURN);
            left -= turn;
            let begun = Instant::now();
            without.extend(line.drive(Pace::Full, || begun.elapsed() > turn)?);
            let more = std::thread::scope(|scope| -> anyhow::Result<u64> {
                let acts = scope.spawn(|| self.swap(running, swaps, turn));
                with.extend(line.drive(Pace::Full, || acts.is_finished())?);
                acts.join().map_err(|_| anyhow::anyhow!("the swaps' thread panicked"))?
            })?;
            swaps += more;
        }
        Ok((swaps, without, with))
    }

    /// SwapWaits for `time` and returns the number of swaps.
    fn swap(&self, running: &RunningProxy, before: u64, time: Duration) -> anyhow::Result<u64> {
        let begun = Instant::now();
        let mut swaps = 0;
        while begun.elapsed() < time {
            let until = Instant::now() + EVERY;
            swaps += 1;
            let number = before + swaps;
            match number % 2 {
                0 => running.reconfigure(self.dir, &self.stream(number))?,
                _ => self.install(number)?,
            }
            let asked = Instant::now();
            while self.figure(running, "reloads_total", ",result=\"ok\"")? < number as f64 {
                ensure!(asked.elapsed() < SWAP_MAX, "swap {number} is not done after {SWAP_MAX:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        Ok(swaps)
    }

    fn component(&self) -> PathBuf {
        self.dir.join("plugin.wasm")
    }

    /// Installs a component with the same code and another digest, so that it is compiled again.
    fn install(&self, number: u64) -> anyhow::Result<()> {
        let mut bytes = self.source.clone();
        bytes.extend_from_slice(&[0, 10, 1, b'v']);
        bytes.extend_from_slice(&number.to_le_bytes());
        let aside = self.dir.join("plugin.new");
        std::fs::write(&aside, bytes)?;
        std::fs::rename(aside, self.component()).context("the component")
    }

    fn stream(&self, number: u64) -> String {
        let (component, window) = (self.component(), 64 + number % 64);
        let plugin = format!(
            "[[stream.plugin]]\nname = \"p\"\ncomponent = {component:?}\nsettings = {{ window = {window} }}\n"
        );
        stream("bench", self.ingress, self.reader, &plugin)
    }

    fn figure(&self, running: &RunningProxy, name: &str, label: &str) -> anyhow::Result<f64> {
        running.figure(&format!("afterbay_plugin_{name}{{stream=\"bench\",plugin=\"p\"{label}}}"))
    }

    /// Checks that the ledger counts what the reader received, and that the plugin has seen every batch.
    fn check_balance(
        &self,
        running: &RunningProxy,
        frames: u64,
        rows: u64,
        swaps: u64,
    ) -> anyhow::Result<()> {
        let tokens = (frames * rows) as f64;
        for (name, expected) in [
            ("tokens_received_total", tokens),
            ("tokens_forwarded_total", tokens),
            ("request_gaps_total", 0.0),
            ("request_imbalances_total", 0.0),
        ] {
            let is = running.figure(&format!("afterbay_{name}{{stream=\"bench\"}}"))?;
            ensure!(is == expected, "{name} is {is}, and must be {expected}");
        }
        let lost = running.figure("afterbay_events_total{event=\"PluginStateLost\"}").unwrap_or(0.0);
        ensure!(lost == 0.0, "state was lost at {lost} swaps of {swaps}");
        for (name, label, expected) in [
            ("calls_total", "", frames),
            ("bypassed_batches_total", "", 0),
            ("reloads_total", ",result=\"ok\"", swaps),
            ("reloads_total", ",result=\"failed\"", 0),
        ] {
            let is = self.figure(running, name, label)?;
            ensure!(is == expected as f64, "{name}{label} is {is}, and must be {expected}");
        }
        Ok(())
    }
}
