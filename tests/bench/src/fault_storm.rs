//! The cost that a plugin which faults at every batch has for its own stream and for another stream of the process.

use crate::figures::percentile_ms;
use crate::proxy::{JournalStorage, RunningProxy, run, stream};
use crate::timed_stream::{Pace, TimedStream};
use afterbay_cost::traffic::Traffic;
use afterbay_runtime::{Columns, FinishKind, Host, HostOptions, Limits};
use anyhow::{Context, ensure};
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Rows per batch.
pub(crate) const ROWS: u64 = 1000;
/// The time between two batches.
const STEP: Duration = Duration::from_millis(5);
/// The time before memory is first measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// The default number of faults before quarantine.
const QUARANTINE: u64 = 5;
/// The memory limit of a faulty plugin.
const MEMORY_MIB: u64 = 4;

/// The name of a fault, the guest with that fault, and the guest's setting.
const FAULTY: [(&str, &str, (&str, &str)); 4] = [
    ("an endless loop", "loops", ("in", "process")),
    ("a memory hog", "hog", ("in", "process")),
    ("a trap", "panics", ("in", "process")),
    ("nonsense", "malformed", ("answer", "past the last row")),
];

/// A set of faulty plugins to measure.
#[derive(Clone)]
pub(crate) struct FaultStorm {
    pub(crate) name: String,
    /// The plugins, as a range of [`FAULTY`].
    which: std::ops::Range<usize>,
    quarantine: bool,
}

/// Each faulty plugin without quarantine, then all together with the default quarantine.
pub(crate) fn cases() -> Vec<FaultStorm> {
    let each = FAULTY.iter().enumerate().map(|(at, (name, ..))| FaultStorm {
        name: (*name).to_owned(),
        which: at..at + 1,
        quarantine: false,
    });
    let all = FaultStorm { name: "all, and quarantine".to_owned(), which: 0..FAULTY.len(), quarantine: true };
    each.chain([all]).collect()
}

/// Waits in milliseconds, the number of faults, and the growth of memory.
pub(crate) struct StormResult {
    pub(crate) beside_p99: f64,
    pub(crate) same_p99: f64,
    pub(crate) faults: f64,
    pub(crate) memory_grew_kib: f64,
}

impl FaultStorm {
    /// The same case without faulty plugins.
    pub(crate) fn calm(&self) -> FaultStorm {
        FaultStorm { which: 0..0, ..self.clone() }
    }

    fn plugins(&self, guests: &Path) -> String {
        let component = |name: &str| guests.join(format!("examples/{name}.wasm"));
        let mut plugins = String::new();
        for (_, guest, (setting, is)) in &FAULTY[self.which.clone()] {
            plugins += &format!(
                "[[stream.plugin]]\nname = {guest:?}\ncomponent = {:?}\nsettings = {{ {setting} = {is:?} }}\nlimits = {{ memory = \"{MEMORY_MIB}MiB\" }}\n",
                component(guest)
            );
            if !self.quarantine {
                plugins += "quarantine = { faults = 0 }\n";
            }
        }
        let healthy = component("nothing");
        plugins + &format!("[[stream.plugin]]\nname = \"healthy\"\ncomponent = {healthy:?}\n")
    }

    /// Drives two streams for `time`. The stream `same` has the faulty plugins and a healthy one after them; the stream `beside` has only
    /// the healthy one. A changed frame is an error.
    pub(crate) fn measure(
        &self,
        binary: &Path,
        guests: &Path,
        traffic: &Traffic,
        time: Duration,
    ) -> anyhow::Result<StormResult> {
        let dir = tempfile::Builder::new().prefix("afb").tempdir_in("/tmp")?;
        let place = |name: &str| format!("ipc://{}/{name}", dir.path().display());
        let [same, same_out, beside, beside_out] = ["same", "same.out", "beside", "beside.out"].map(place);
        let streams = stream("same", &same, &same_out, &self.plugins(guests))
            + &stream("beside", &beside, &beside_out, &self.calm().plugins(guests));
        let running =
            RunningProxy::afterbay(&mut run(binary), dir.path(), JournalStorage::OnDisk, &streams, &same)?;
        let mut same = TimedStream::start(&same, &same_out, traffic)?;
        let mut beside = TimedStream::start(&beside, &beside_out, traffic)?;
        running.explain(both(&mut same, &mut beside, WARM_UP))?;
        let before = running.resident_bytes()?;
        let (of_same, of_beside) = running.explain(both(&mut same, &mut beside, time))?;
        let after = running.resident_bytes()?;
        let faults = self.faults(&running, same.sent())?;
        let bytes = after as f64 - before as f64;
        Ok(StormResult {
            beside_p99: percentile_ms(&of_beside, 0.99),
            same_p99: percentile_ms(&of_same, 0.99),
            faults: faults as f64,
            memory_grew_kib: bytes / 1024.0,
        })
    }

    /// The number of faults. It must be one per batch and plugin, or [`QUARANTINE`] per plugin.
    fn faults(&self, running: &RunningProxy, batches: u64) -> anyhow::Result<u64> {
        let mut all = 0;
        for (_, guest, _) in &FAULTY[self.which.clone()] {
            let mut faults = 0;
            for kind in ["trap", "deadline", "memory", "malformed"] {
                let labels = format!("stream=\"same\",plugin={guest:?},kind={kind:?}");
                faults += running.figure(&format!("afterbay_plugin_faults_total{{{labels}}}"))? as u64;
            }
            let expected = if self.quarantine { QUARANTINE } else { batches };
            ensure!(faults == expected, "{guest}: faulted {faults} times, and must {expected} times");
            all += faults;
        }
        Ok(all)
    }
}

/// Drives both streams at the same time and returns their waits.
fn both(
    one: &mut TimedStream<'_>,
    other: &mut TimedStream<'_>,
    time: Duration,
) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let begun = Instant::now();
    let is_over = || begun.elapsed() > time;
    std::thread::scope(|scope| {
        let one = scope.spawn(|| one.drive(Pace::Every(STEP), is_over));
        let other = other.drive(Pace::Every(STEP), is_over)?;
        Ok((one.join().map_err(|_| anyhow::anyhow!("a sender panicked"))??, other))
    })
}

/// The CPU time of a faulty plugin's calls, in milliseconds.
pub(crate) struct CallTimes {
    pub(crate) name: String,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// May include a pause of the virtual machine.
    pub(crate) longest: f64,
}

/// Measures the calls of each faulty plugin that is `wanted`, in this process, each call on a fresh instance.
pub(crate) fn calls(
    guests: impl Fn() -> anyhow::Result<PathBuf>,
    time: Duration,
    wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<CallTimes>> {
    let host = Host::new(HostOptions::default())?;
    let limits = Limits { memory_bytes: MEMORY_MIB << 20, ..Limits::default() };
    let requests: Vec<u64> = (0..ROWS).collect();
    let ends: Vec<u32> = (1..=ROWS as u32).collect();
    let columns = Columns {
        requests: &requests,
        output_ids: &vec![7; ROWS as usize],
        output_ends: &ends,
        completion_tokens: &vec![100; ROWS as usize],
        finished: &vec![FinishKind::Running; ROWS as usize],
        ..Columns::default()
    };
    let mut calls = Vec::new();
    for (of, guest, (setting, is)) in FAULTY {
        let name = format!("storm, calls of {of}");
        if !wanted(&name) {
            continue;
        }
        let bytes = std::fs::read(guests()?.join(format!("examples/{guest}.wasm"))).context(guest)?;
        let component = host.load(guest, &bytes, limits.clone())?;
        let settings = format!("{{{setting:?}: {is:?}}}");
        let until = Instant::now() + time / FAULTY.len() as u32;
        let mut took = Vec::new();
        while Instant::now() < until {
            let mut plugin = component.instantiate(&settings)?;
            let begun = processor_time();
            ensure!(plugin.process(&columns).is_err(), "{guest} does not fault");
            took.push(processor_time().saturating_sub(begun));
        }
        took.sort_unstable();
        calls.push(CallTimes {
            name,
            p50: percentile_ms(&took, 0.5),
            p99: percentile_ms(&took, 0.99),
            longest: percentile_ms(&took, 1.0),
        });
    }
    Ok(calls)
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
