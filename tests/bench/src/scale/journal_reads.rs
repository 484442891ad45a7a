//! `afterbay journal ls` and `show` on a journal that a running Afterbay writes to.

use super::journal_maker::JournalMaker;
use super::{forget_cached, on_disk};
use crate::figures::median;
use anyhow::{Context, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Size of a segment, the default.
const SEGMENT_BYTES: u64 = 256 << 20;
/// Bytes of the frames of a segment. Its other records fill the rest.
const FRAMES_BYTES: u64 = 224 << 20;
/// Rows of a frame.
const ROWS: u64 = 64;
/// One hundredth of a second, in which the kernel counts the CPU time of ended processes.
const TICK_MS: f64 = 10.0;

pub(super) struct JournalReads {
    /// Milliseconds that a process of the binary takes for nothing.
    pub(super) begin: f64,
    pub(super) commands: Vec<(&'static str, CommandCost)>,
}

pub(super) struct CommandCost {
    /// Milliseconds, with the journal in the kernel's cache.
    pub(super) cached_ms: f64,
    /// CPU time of this.
    pub(super) cpu_ms: f64,
    /// Milliseconds, with nothing of the journal in the kernel's cache.
    pub(super) from_disk_ms: f64,
}

/// Makes a journal and runs each command on it. Three of the journal's segments are as a stream writes them: the oldest, one in the
/// middle, and the newest, which is still written. Others have their requests and one hollow frame.
pub(super) fn measure(afterbay: &Path, gb: u64, runs: usize) -> anyhow::Result<JournalReads> {
    let dir = on_disk()?;
    let segments = (gb * 1_000_000_000 / FRAMES_BYTES).max(4);
    let mut maker = JournalMaker::new(dir.path(), ROWS, SEGMENT_BYTES, segments * FRAMES_BYTES, true)?;
    let (mut oldest, mut middle, mut newest) = Default::default();
    let mut told = Instant::now();
    for at in 0..segments {
        if told.elapsed() >= Duration::from_secs(5) {
            eprintln!("segment {at} of {segments} is made");
            told = Instant::now();
        }
        match at {
            0 => oldest = maker.requests(FRAMES_BYTES)?,
            _ if at == segments / 2 => middle = maker.requests(FRAMES_BYTES)?,
            _ if at == segments - 1 => newest = maker.requests(FRAMES_BYTES)?,
            _ => maker.hollow(FRAMES_BYTES)?,
        }
    }
    maker.flush()?;
    let journal = dir.path().to_str().context("the directory is no UTF-8")?;
    let cases: [(&str, &[&str]); 6] = [
        ("ls", &["ls"]),
        ("ls --last 20 --json", &["ls", "--last", "20", "--json"]),
        ("ls --since 1m --json", &["ls", "--since", "1m", "--json"]),
        ("show, of the oldest segment", &["show", &oldest]),
        ("show, of a middle segment", &["show", &middle]),
        ("show, of the newest segment", &["show", &newest]),
    ];
    let begin =
        median((0..runs).map(|_| run(afterbay, &["--version"])).collect::<Result<Vec<_>, _>>()?.into_iter());
    let mut commands = Vec::new();
    for (what, command) in cases {
        let args = [&["journal"], command, &["--from", journal]].concat();
        forget_cached(dir.path())?;
        let from_disk_ms = run(afterbay, &args)?;
        let cpu = children_ticks()?;
        let cached: Vec<f64> = (0..runs).map(|_| run(afterbay, &args)).collect::<anyhow::Result<_>>()?;
        let cpu_ms = (children_ticks()? - cpu) * TICK_MS / runs as f64;
        commands.push((what, CommandCost { cached_ms: median(cached.into_iter()), cpu_ms, from_disk_ms }));
    }
    Ok(JournalReads { begin, commands })
}

/// Milliseconds of a process with these arguments.
fn run(afterbay: &Path, args: &[&str]) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let status = Command::new(afterbay).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    let took = begun.elapsed();
    ensure!(status.success(), "afterbay {}: {status}", args.join(" "));
    Ok(took.as_secs_f64() * 1e3)
}

/// User and system time of ended child processes.
fn children_ticks() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // After the name, which may contain spaces: the state is the third field, cutime and cstime the 16th and 17th.
    let fields = text.rsplit_once(')').context("stat")?.1.split_whitespace().skip(13).take(2);
    Ok(fields.map(str::parse::<f64>).collect::<Result<Vec<_>, _>>()?.iter().sum())
}
