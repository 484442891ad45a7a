//! The throughput of several streams of one process.

use crate::forwarding::Throughput;
use crate::peers::{Reader, Sender};
use crate::proxy::{JournalStorage, RunningProxy, run, stream};
use afterbay_cost::traffic::Traffic;
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most frames in flight of a stream.
const IN_FLIGHT: u64 = 64;

/// A sender, and a reader that counts.
pub(super) struct Peers {
    pub(super) sender: Sender,
    pub(super) received: Arc<AtomicU64>,
    _reader: Reader,
}

/// Starts Afterbay with several streams, and the peers of each.
pub(super) fn start(
    afterbay: &Path,
    dir: &Path,
    streams: usize,
) -> anyhow::Result<(RunningProxy, Vec<Peers>)> {
    let endpoint = |what: &str, at: usize| format!("ipc://{}/{what}-{at}", dir.display());
    let mut readers = Vec::new();
    for at in 0..streams {
        let received = Arc::new(AtomicU64::new(0));
        let count = received.clone();
        let reader = Reader::start(&endpoint("reader", at), move |_| {
            count.fetch_add(1, Ordering::Release);
        })?;
        readers.push((reader, received));
    }
    let configured = |at| stream(&format!("s{at}"), &endpoint("in", at), &endpoint("reader", at), "");
    let configured: String = (0..streams).map(configured).collect();
    let proxy = RunningProxy::afterbay(
        &mut run(afterbay),
        dir,
        JournalStorage::OnDisk,
        &configured,
        &endpoint("in", 0),
    )?;
    let connect = |(at, (reader, received))| {
        Ok(Peers { sender: Sender::connect(&endpoint("in", at))?, received, _reader: reader })
    };
    let peers = readers.into_iter().enumerate().map(connect).collect::<anyhow::Result<_>>()?;
    Ok((proxy, peers))
}

impl Peers {
    /// Sends frames while `frame` gives some, and waits until all have arrived. Returns their number.
    pub(super) fn drive(
        &mut self,
        mut frame: impl FnMut(u64) -> Option<bytes::Bytes>,
    ) -> anyhow::Result<u64> {
        let from = self.sender.sent;
        while let Some(bytes) = frame(self.sender.sent) {
            self.sender.wait_for(&self.received, IN_FLIGHT)?;
            self.sender.send(bytes)?;
        }
        self.sender.wait_for(&self.received, 1)?;
        Ok(self.sender.sent - from)
    }
}

/// The largest throughput of all streams together, each driven for `time` by a thread of its own.
pub(super) fn measure(
    afterbay: &Path,
    streams: usize,
    traffic: &Traffic,
    time: Duration,
) -> anyhow::Result<Throughput> {
    let dir = super::on_disk()?;
    let (proxy, mut peers) = start(afterbay, dir.path(), streams)?;
    let warm = traffic.frames.len() as u64;
    for peers in &mut peers {
        let warmed = peers.drive(|sent| (sent < warm).then(|| traffic.frame(sent)));
        proxy.explain(warmed)?;
    }
    let (begun, cpu) = (Instant::now(), proxy.cpu()?);
    let frames = std::thread::scope(|scope| {
        let drive = |peers| {
            scope.spawn(move || {
                let peers: &mut Peers = peers;
                peers.drive(|sent| (begun.elapsed() < time).then(|| traffic.frame(sent)))
            })
        };
        let driven: Vec<_> = peers.iter_mut().map(drive).collect();
        let joined = driven.into_iter().map(|thread| thread.join().ok().context("a sender panicked")?);
        joined.sum::<anyhow::Result<u64>>()
    });
    let rows = (proxy.explain(frames)? * traffic.rows_per_frame) as f64;
    let (elapsed, cpu) = (begun.elapsed(), proxy.cpu()?.saturating_sub(cpu));
    Ok(Throughput {
        cpu_ns_per_row: cpu.as_nanos() as f64 / rows,
        rows_per_second: rows / elapsed.as_secs_f64(),
    })
}
