//! What a plugin that faults at every batch costs others: those of another stream in the process, and its own stream.

use crate::between::{Kept, Running, run, stream};
use crate::line::{Line, Pace, at};
use crate::traffic::Traffic;
use afterbay_runtime::{Columns, FinishKind, Host, HostOptions, Limits};
use anyhow::{Context, ensure};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::time::{Duration, Instant};

/// Rows of a batch.
pub(crate) const ROWS: u64 = 1000;
/// A scheduler's step.
const STEP: Duration = Duration::from_millis(5);
/// Before memory is looked at.
const WARM_UP: Duration = Duration::from_millis(500);
/// Faults until a plugin is out of the chain, as a configuration has it that says nothing.
const QUARANTINE: u64 = 5;
/// Memory of a faulty plugin.
const MEMORY_MIB: u64 = 4;

/// What is wrong, the guest that does it, and its one setting.
const FAULTY: [(&str, &str, (&str, &str)); 4] = [
    ("an endless loop", "loops", ("in", "process")),
    ("a memory hog", "hog", ("in", "process")),
    ("a trap", "panics", ("in", "process")),
    ("nonsense", "malformed", ("answer", "past the last row")),
];

/// A case.
#[derive(Clone)]
pub(crate) struct Storm {
    pub(crate) name: String,
    /// Of [`FAULTY`].
    which: std::ops::Range<usize>,
    quarantine: bool,
}

/// Each of them for as long as it is driven, then all at once as a configuration has it that says nothing.
pub(crate) fn cases() -> Vec<Storm> {
    let each = FAULTY.iter().enumerate().map(|(at, (name, ..))| Storm {
        name: (*name).to_owned(),
        which: at..at + 1,
        quarantine: false,
    });
    let all = Storm { name: "all, and quarantine".to_owned(), which: 0..FAULTY.len(), quarantine: true };
    each.chain([all]).collect()
}

/// What was seen, in milliseconds.
pub(crate) struct Seen {
    pub(crate) beside_p99: f64,
    pub(crate) same_p99: f64,
    pub(crate) faults: f64,
    pub(crate) memory_grew_kib: f64,
}

impl Storm {
    /// As the same without what is faulty.
    pub(crate) fn calm(&self) -> Storm {
        Storm { which: 0..0, ..self.clone() }
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

    /// Two streams for that long, of which one has what is faulty before a plugin that is not; the other has only that. An
    /// error where a frame is not the bytes that were sent.
    pub(crate) fn measure(
        &self,
        binary: &Path,
        guests: &Path,
        traffic: &Traffic,
        time: Duration,
    ) -> anyhow::Result<Seen> {
        let dir = tempfile::Builder::new().prefix("afb").tempdir_in("/tmp")?;
        let place = |name: &str| format!("ipc://{}/{name}", dir.path().display());
        let [same, same_out, beside, beside_out] = ["same", "same.out", "beside", "beside.out"].map(place);
        let streams = stream("same", &same, &same_out, &self.plugins(guests))
            + &stream("beside", &beside, &beside_out, &self.calm().plugins(guests));
        let running = Running::afterbay(&mut run(binary), dir.path(), Kept::OnDisk, &streams, &same)?;
        let mut same = Line::start(&same, &same_out, traffic)?;
        let mut beside = Line::start(&beside, &beside_out, traffic)?;
        running.explain(both(&mut same, &mut beside, WARM_UP))?;
        let before = running.resident_bytes()?;
        let (of_same, of_beside) = running.explain(both(&mut same, &mut beside, time))?;
        let after = running.resident_bytes()?;
        let faults = self.faults(&running, same.sent())?;
        let bytes = after as f64 - before as f64;
        Ok(Seen {
            beside_p99: at(&of_beside, 0.99),
            same_p99: at(&of_same, 0.99),
            faults: faults as f64,
            memory_grew_kib: bytes / 1024.0,
        })
    }

    /// How often they faulted: at every batch, or until they were out of the chain.
    fn faults(&self, running: &Running, batches: u64) -> anyhow::Result<u64> {
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

/// Drives both at once; their waits.
fn both(
    one: &mut Line<'_>,
    other: &mut Line<'_>,
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

/// Calls of a faulty plugin, in milliseconds of its thread's processor time.
pub(crate) struct Calls {
    pub(crate) name: String,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// A virtual machine that stands still may count for it.
    pub(crate) longest: f64,
}

/// How long the calls are of each faulty plugin that is wanted. In this process, each on a fresh instance, as a stream has it.
pub(crate) fn calls(
    guests: &Path,
    time: Duration,
    wants: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<Calls>> {
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
        if !wants(&name) {
            continue;
        }
        let bytes = std::fs::read(guests.join(format!("examples/{guest}.wasm"))).context(guest)?;
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
        calls.push(Calls { name, p50: at(&took, 0.5), p99: at(&took, 0.99), longest: at(&took, 1.0) });
    }
    Ok(calls)
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
