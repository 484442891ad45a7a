//! The cost per row of single parts in this process, beside the cost of decoding the same frames.

use afterbay_batch::outbox::{Frame, Options, Outbox, When};
use afterbay_batch::{Content, Joins};
use afterbay_cost::traffic::Traffic;
use afterbay_scheduler::signals::LoadHandle;
use afterbay_wire::{Batch, BatchPart, DecodedFrame, decode};
use anyhow::{Context, bail};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The number of frames in a backlog whose rows are joined.
const BACKLOG: usize = 16;

/// Costs in nanoseconds per row.
pub(crate) struct Parts {
    pub(crate) decode: f64,
    /// Passing through an outbox whose sink keeps up.
    pub(crate) passes: f64,
    /// Passing through an outbox in which [`BACKLOG`] frames wait.
    pub(crate) waits: f64,
    /// Joining the rows of a backlog, without the outbox.
    pub(crate) joins: f64,
    /// Taking every second row out of a frame.
    pub(crate) takes: f64,
}

/// Measures each part on this thread for a fifth of `time` and returns its fastest round.
pub(crate) fn measure(traffic: &Traffic, time: Duration) -> anyhow::Result<Parts> {
    let batch = |frame: &bytes::Bytes| match decode(frame.clone(), &traffic.layouts) {
        DecodedFrame::Batch(batch) => Ok(batch),
        DecodedFrame::Barrier(barrier) => bail!("{:?}", barrier.kind),
    };
    let frames = traffic.frames.get(1..=BACKLOG).context("too few frames")?;
    let rows = (BACKLOG as u64 * traffic.rows_per_frame) as f64;
    let decoded = || frames.iter().map(batch).collect::<anyhow::Result<Vec<Batch>>>();
    let options = Options {
        when: When::Backpressure,
        joins: Joins::default(),
        max_rows: 512,
        max_frames: usize::MAX,
        max_bytes: u64::MAX,
    };
    let now = Instant::now();
    let requests: Box<[u64]> = (0..traffic.rows_per_frame).collect();
    let mut number = 0;
    let mut push = |outbox: &mut Outbox, batch: Batch| {
        number += 1;
        outbox.push(Frame { number, at: now, content: Content::Rows { batch, requests: requests.clone() } });
    };
    let share = time / 5;
    let decode = fastest(
        share,
        || Ok(()),
        |()| {
            black_box(decoded()?);
            Ok(())
        },
    )?;
    let mut outbox = Outbox::new(options, 0, 0);
    let passes = fastest(share, decoded, |batches| {
        for batch in batches {
            push(&mut outbox, batch);
            let next = outbox.next(true, now).context("the outbox has nothing to send")?;
            outbox.taken(black_box(next).sequence);
        }
        Ok(())
    })?;
    let waits = fastest(share, decoded, |batches| {
        batches.into_iter().for_each(|batch| push(&mut outbox, batch));
        while let Some(next) = outbox.next(true, now) {
            outbox.taken(black_box(next).sequence);
        }
        Ok(())
    })?;
    let joins = fastest(share, decoded, |batches| {
        let parts: Vec<BatchPart<'_>> = batches.iter().map(BatchPart::from).collect();
        black_box(Batch::join(&parts)?);
        Ok(())
    })?;
    let half: Vec<u32> = (0..traffic.rows_per_frame as u32).step_by(2).collect();
    let takes = fastest(share, decoded, |batches| {
        for batch in &batches {
            black_box(batch.take(&half)?);
        }
        Ok(())
    })?;
    Ok(Parts {
        decode: decode / rows,
        passes: passes / rows,
        waits: waits / rows,
        joins: joins / rows,
        takes: takes * 2.0 / rows,
    })
}

/// The cost of reading the scheduler's load, in nanoseconds.
pub(crate) fn snapshot(time: Duration) -> anyhow::Result<f64> {
    const READS: usize = 1000;
    let load = LoadHandle::default();
    let now = Instant::now();
    let read = |()| {
        for _ in 0..READS {
            black_box(load.read_at(black_box(now)));
        }
        Ok(())
    };
    Ok(fastest(time, || Ok(()), read)? / READS as f64)
}

/// The nanoseconds of the fastest round, without the time of `prepare`.
fn fastest<T>(
    time: Duration,
    mut prepare: impl FnMut() -> anyhow::Result<T>,
    mut round: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let until = Instant::now() + time;
    let mut fastest = f64::INFINITY;
    while Instant::now() < until {
        let prepared = prepare()?;
        let begun = Instant::now();
        round(prepared)?;
        fastest = fastest.min(begun.elapsed().as_nanos() as f64);
    }
    Ok(fastest)
}
