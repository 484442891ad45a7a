//! How long batches wait while their plugin is swapped, every 200 ms: by turns another component and other settings.

use crate::between::{Kept, Running, run, stream};
use crate::line::{Line, Pace, at};
use crate::traffic::Traffic;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(200);
/// With swaps and without take turns of so long, so that a machine that slows down slows both.
const TURN: Duration = Duration::from_secs(2);
/// How long a swap may take until it is in force.
const SWAP_MAX: Duration = Duration::from_secs(20);
/// A batch is to wait no longer for a swap.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Tokens of a request: so many that at full load each lives for more than one swap.
const STEPS: u64 = 1024;

/// What waits were seen, in milliseconds.
pub(crate) struct Swaps {
    pub(crate) swaps: f64,
    pub(crate) without: Waits,
    pub(crate) with: Waits,
    /// How long the stream says that it stood for a swap, to the next bound of its histogram, in milliseconds.
    pub(crate) stood_longest: f64,
    /// How often it stood longer than 5 ms.
    pub(crate) stood_over: f64,
}

pub(crate) struct Waits {
    pub(crate) p50: f64,
    pub(crate) longest: f64,
    /// That waited longer than 5 ms.
    pub(crate) over: f64,
}

impl Waits {
    fn new(mut waits: Vec<Duration>) -> Waits {
        waits.sort_unstable();
        let over = waits.iter().filter(|wait| **wait > WAIT_MAX).count() as f64;
        Waits { p50: at(&waits, 0.5), longest: at(&waits, 1.0), over }
    }
}

/// What is sent for it.
pub(crate) fn traffic(rows: u64) -> anyhow::Result<Traffic> {
    Traffic::new("msgpack", rows, STEPS)
}

/// Full load for that long with swaps, and as long without. An error where a token is lost or repeated, or the ledger says so.
pub(crate) fn measure(
    binary: &Path,
    examples: &Path,
    traffic: &Traffic,
    time: Duration,
) -> anyhow::Result<Swaps> {
    let dir = tempfile::Builder::new().prefix("afb").tempdir_in("/tmp")?;
    let [ingress, reader] = ["in", "out"].map(|name| format!("ipc://{}/{name}", dir.path().display()));
    let swapped = Swapped {
        dir: dir.path(),
        ingress: &ingress,
        reader: &reader,
        source: std::fs::read(examples.join("stop_on_loop.wasm"))?,
    };
    swapped.install(0)?;
    let running =
        Running::afterbay(&mut run(binary), dir.path(), Kept::OnDisk, &swapped.stream(0), &ingress)?;
    let mut line = Line::start(&ingress, &reader, traffic)?;
    let measured = swapped.by_turns(&running, &mut line, time);
    let (swaps, without, with) = running.explain(measured)?;
    let (stood_longest, stood_over) = running.explain(stood(&running))?;
    running.explain(swapped.is_balanced(&running, line.sent(), traffic.rows_per_frame, swaps))?;
    running.stop()?;
    line.end()?;
    Ok(Swaps {
        swaps: swaps as f64,
        without: Waits::new(without),
        with: Waits::new(with),
        stood_longest,
        stood_over,
    })
}

/// How long the stream stood for what took over at most, in milliseconds, and how often longer than 5 ms.
fn stood(running: &Running) -> anyhow::Result<(f64, f64)> {
    let bounds = running.buckets("afterbay_change_seconds_bucket{le=\"", "\",stream=\"bench\"}")?;
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

/// How many swaps, and the waits without and with them.
type Turns = (u64, Vec<Duration>, Vec<Duration>);

impl Swapped<'_> {
    fn by_turns(&self, running: &Running, line: &mut Line<'_>, time: Duration) -> anyhow::Result<Turns> {
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

    /// Swaps for that long; how often.
    fn swap(&self, running: &Running, before: u64, time: Duration) -> anyhow::Result<u64> {
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
                ensure!(asked.elapsed() < SWAP_MAX, "swap {number} is not in force after {SWAP_MAX:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        Ok(swaps)
    }

    fn component(&self) -> PathBuf {
        self.dir.join("plugin.wasm")
    }

    /// Another component that does the same, as a build would leave it: compiled anew, since nobody has seen it.
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

    fn figure(&self, running: &Running, name: &str, label: &str) -> anyhow::Result<f64> {
        running.figure(&format!("afterbay_plugin_{name}{{stream=\"bench\",plugin=\"p\"{label}}}"))
    }

    /// What the ledger says is what the reader has, and the plugin has seen every batch.
    fn is_balanced(&self, running: &Running, frames: u64, rows: u64, swaps: u64) -> anyhow::Result<()> {
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
