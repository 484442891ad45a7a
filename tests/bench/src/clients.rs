//! Clients that come back all at once: the time until each has its next tokens, and the processor time for it, beside one scan of the
//! newest segment.

use crate::figures::percentile_ms;
use crate::proxy::{cpu_of, free_address};
use afterbay_http::CapabilityKeys;
use afterbay_journal::reader::JournalReader;
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, SyncPolicy,
};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use anyhow::{Context, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Clients, each with a live request of its own.
pub(crate) const CLIENTS: usize = 1000;
/// Bytes of the newest segment.
const NEWEST_BYTES: u64 = 64 << 20;
const STREAM: &str = "bench";
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(600);
const STACK_BYTES: usize = 256 << 10;

/// The cost of one way to come back.
pub(crate) struct Returns {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// The follower's processor time for each client.
    pub(crate) cpu_ms: f64,
    /// The time of a scan of the newest segment for one request, in this process.
    pub(crate) scan_ms: f64,
    /// The follower's resident memory after it.
    pub(crate) resident_mib: f64,
}

struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn rid(request: usize) -> String {
    format!("request-{request:06}")
}

/// Writes rows of all requests until the segment is large enough. Returns the tokens of each.
fn write(writer: &mut JournalWriter) -> anyhow::Result<u64> {
    let requests: Vec<JournalRequest> = (0..CLIENTS).map(|request| writer.open(rid(request))).collect();
    let (mut bytes, mut tokens) = (0, 0);
    while bytes < NEWEST_BYTES {
        tokens += 1;
        let rows = (0..CLIENTS).map(|request| SynthRow {
            rid: rid(request),
            ids: vec![tokens as i64],
            completion_tokens: tokens,
            ..SynthRow::default()
        });
        let frame = SynthBatch { rows: rows.collect() }.encode(BatchKind::TokenId, SynthWire::Msgpack)?;
        bytes += frame.len() as u64;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
        let number = writer.append(&frame, now)?.frame;
        writer.outcome(&Outcome {
            requests: (&requests[..]).into(),
            tokens: vec![1; CLIENTS].into(),
            ..Outcome::new(number, now, Passage::Unchanged)
        });
        writer.flush()?;
    }
    Ok(tokens)
}

/// Measures clients that come back with `missing` tokens to go.
pub(crate) fn measure(afterbay: &Path, missing: u64) -> anyhow::Result<Returns> {
    let dir = tempfile::Builder::new().prefix("afb").tempdir()?;
    let journal = dir.path().join("journal");
    let options = JournalOptions {
        sync: SyncPolicy::None,
        segment_bytes: 4 * NEWEST_BYTES,
        ..JournalOptions::default()
    };
    let directory = JournalDirectory::open(&journal, options)?;
    let (mut writer, _) = directory.stream(STREAM)?;
    let tokens = write(&mut writer)?;
    let scanned = Instant::now();
    let lives = JournalReader::open(&journal)?.stream(STREAM)?.lives(&rid(0))?;
    let scan_ms = scanned.elapsed().as_secs_f64() * 1e3;
    ensure!(lives.iter().map(|life| life.rows.len() as u64).sum::<u64>() == tokens, "rows are missing");
    let (address, key_file) = (free_address()?, dir.path().join("key"));
    std::fs::write(&key_file, "a secret of at least thirty-two bytes")?;
    let follower = follow(afterbay, dir.path(), &journal, &key_file, address)?;
    // Its first reading is over.
    let keys = CapabilityKeys::read(&key_file).map_err(anyhow::Error::msg)?;
    read(address, &keys, 0, tokens - 1)?;
    let before = cpu_of(follower.0.id())?;
    let barrier = Barrier::new(CLIENTS);
    let waits = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|request| {
            let (keys, barrier) = (&keys, &barrier);
            let client = move || {
                barrier.wait();
                read(address, keys, request, tokens.saturating_sub(missing))
            };
            std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, client)
        });
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let waits =
            clients.into_iter().map(|client| client.join().unwrap_or_else(|_| anyhow::bail!("panic")));
        waits.collect::<anyhow::Result<Vec<Duration>>>()
    });
    let mut waits = waits?;
    waits.sort_unstable();
    let cpu = cpu_of(follower.0.id())? - before;
    let status = std::fs::read_to_string(format!("/proc/{}/status", follower.0.id()))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(Returns {
        p50_ms: percentile_ms(&waits, 0.5),
        p99_ms: percentile_ms(&waits, 0.99),
        cpu_ms: cpu.as_secs_f64() * 1e3 / CLIENTS as f64,
        scan_ms,
        resident_mib: resident.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0,
    })
}

fn follow(
    afterbay: &Path,
    dir: &Path,
    journal: &Path,
    key_file: &Path,
    address: SocketAddr,
) -> anyhow::Result<Follower> {
    let config = dir.join("afterbay.toml");
    let [ingress, reader] = ["in", "out"].map(|name| format!("ipc://{}/{name}", dir.display()));
    std::fs::write(
        &config,
        format!(
            "[[stream]]\nname = {STREAM:?}\nlisten = {ingress:?}\n[[stream.sink]]\nname = \"reader\"\nconnect = {reader:?}\n\
             [journal]\ndir = {journal:?}\n[clients]\nlisten = \"{address}\"\nkey_file = {key_file:?}\nconnections = 20000\n"
        ),
    )?;
    let child = Command::new(afterbay.with_file_name("afterbay-follow"))
        .args(["follow", "--log", "error", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .spawn()
        .context("afterbay-follow")?;
    let follower = Follower(child);
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        ensure!(begun.elapsed() < ANSWER_MAX, "the follower does not listen after {ANSWER_MAX:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(follower)
}

/// Reads a request from a token on. Returns the time until the first event with tokens.
fn read(address: SocketAddr, keys: &CapabilityKeys, request: usize, from: u64) -> anyhow::Result<Duration> {
    let rid = rid(request);
    let token = keys.mint(&rid, u64::from(u32::MAX));
    let begun = Instant::now();
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    write!(
        socket,
        "GET /v1/streams/{rid}?from={from}&token={token} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n"
    )?;
    for line in BufReader::new(socket).lines() {
        let line = line?;
        if let Some(data) = line.strip_prefix("data: ") {
            let waited = begun.elapsed();
            let data: serde_json::Value = serde_json::from_str(data)?;
            let first = data["ids"][0].as_u64();
            ensure!(data["from"] == from && first == Some(from + 1), "{rid} from {from}: {data}");
            return Ok(waited);
        }
    }
    anyhow::bail!("{rid}: no tokens")
}
