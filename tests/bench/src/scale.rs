//! Many streams, many live requests, and large journals.

mod hollow_disk;
mod journal_maker;
mod journal_reads;
mod live_requests;
mod recovery;
mod streams;

use crate::figures::median;
use crate::proxy::JournalStorage;
use crate::{Bench, forwarding::Throughput};
use afterbay_cost::traffic::Traffic;
use std::path::{Path, PathBuf};

/// Sizes of the journals that commands read, in GB.
const JOURNAL_GB: [u64; 2] = [1, 100];
/// Live requests.
const LIVE: [u64; 3] = [10_000, 100_000, 1_000_000];
/// Streams of one process.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

impl Bench {
    /// Many streams, many live requests, and large journals. Each figure stands beside the smallest case.
    pub(crate) fn scale(&mut self) -> anyhow::Result<()> {
        self.streams()?;
        self.live_requests()?;
        self.recovery()?;
        self.journal_reads()
    }

    fn streams(&mut self) -> anyhow::Result<()> {
        for streams in STREAMS {
            let name = format!("scale, streams: {streams}, 64 rows a frame");
            if !self.wants(&name) {
                continue;
            }
            let traffic = Traffic::new("msgpack", 64, self.args.tokens)?;
            let measure = |_| streams::measure(&self.afterbay, streams, &traffic, self.time);
            let runs: Vec<Throughput> = (0..self.args.runs).map(measure).collect::<anyhow::Result<_>>()?;
            let figures = vec![
                ("rows/s of all", median(runs.iter().map(|run| run.rows_per_second))),
                ("ns CPU/row", median(runs.iter().map(|run| run.cpu_ns_per_row))),
                ("load", load()),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn live_requests(&mut self) -> anyhow::Result<()> {
        for live in LIVE {
            let name = format!("scale, live requests: {live}");
            if !self.wants(&name) {
                continue;
            }
            let memory = live_requests::measure(&self.afterbay, live)?;
            let figures = vec![
                ("bytes a live request", memory.live),
                ("bytes a request once all have ended", memory.ended),
                ("bytes a live request, the second time", memory.live_again),
                ("process before MiB", memory.before / f64::from(1 << 20)),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn recovery(&mut self) -> anyhow::Result<()> {
        for (rows, is_cached) in [(1, true), (64, true), (1024, true), (64, false)] {
            let place = if is_cached { "cached" } else { "from the disk" };
            let name = format!("scale, recovery, {rows} rows a frame, {place}");
            if !self.wants(&name) {
                continue;
            }
            let recovery = recovery::measure(rows, is_cached)?;
            let figures = vec![
                ("after kill -9 ms/GB", recovery.killed.wall * 1e3),
                ("ms CPU/GB", recovery.killed.cpu * 1e3),
                ("plain read ms/GB", recovery.read.wall * 1e3),
                ("read ms CPU/GB", recovery.read.cpu * 1e3),
                ("to plain read", recovery.killed.wall / recovery.read.wall),
                ("after a stop ms", recovery.stopped_ms),
                ("load", load()),
            ];
            self.row(name, figures)?;
        }
        Ok(())
    }

    fn journal_reads(&mut self) -> anyhow::Result<()> {
        for gb in JOURNAL_GB {
            let name = format!("scale, journal of {gb} GB");
            if !self.wants(&name) {
                continue;
            }
            let reads = journal_reads::measure(&self.afterbay, gb, self.args.runs)?;
            let begin = reads.begin;
            for (what, cost) in reads.commands {
                let figures = vec![
                    ("cached ms", cost.cached_ms),
                    ("of this CPU ms", cost.cpu_ms),
                    ("from the disk ms", cost.from_disk_ms),
                    ("`--version` ms", begin),
                    ("load", load()),
                ];
                self.row(format!("{name}, {what}"), figures)?;
            }
        }
        Ok(())
    }
}

/// A directory on a disk, removed when this is dropped.
fn on_disk() -> anyhow::Result<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("afb").tempdir_in(JournalStorage::OnDisk.within())?)
}

/// The load average of the last minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// The segments in a journal's directory.
fn segments(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for stream in std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()? {
        if stream.file_type()?.is_dir() {
            for file in std::fs::read_dir(stream.path())? {
                found.push(file?.path());
            }
        }
    }
    found.retain(|file| file.extension().is_some_and(|extension| extension == "seg"));
    found.sort();
    Ok(found)
}

/// Removes the segments from the kernel's cache, so that they are read from the disk.
fn forget_cached(dir: &Path) -> anyhow::Result<()> {
    for segment in segments(dir)? {
        let file = std::fs::File::open(segment)?;
        // The kernel keeps pages that are not written yet.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}
