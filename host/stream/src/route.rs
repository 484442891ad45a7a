//! Which of a stream's sinks gets what of a frame.
//!
//! With several readers, as SGLang's MultiDetokenizerRouter does it, so that Afterbay can stand in its place: a row goes to
//! the reader at `crc32(http_worker_ipc, or rid) % N`, in the order of the configuration; messages without rows go to all.
//! Where a tokenizer has a sink of its own, its rows go there by their `http_worker_ipc`, and to the readers what names none
//! of them: SGLang's MultiTokenizerRouter knows the others. Other sinks get what plugins send them. Since when it is so is in
//! `route/epochs.rs`.

mod epochs;

pub(crate) use epochs::{Leaving, Shares};

use crate::judge::Way;
use crate::keep::Keep;
use crate::telemetry::Telemetry;
use afterbay_batch::reader_key;
pub(crate) use afterbay_batch::{ReaderKey as Reader, SettledContent as Leaves};
use afterbay_config::Takes;
use afterbay_events::Name;
use afterbay_events::event::{BatchUnsplit, RowsNotSkipped};
use afterbay_journal::FrameNo;
use afterbay_ledger::Awaited;
use afterbay_outbox::Content;
use afterbay_wire::Batch;
use epochs::{Among, Epochs};

/// What a sink gets that gets everything.
fn whole(content: Leaves) -> Content {
    match content {
        Leaves::Nothing => Content::Nothing,
        // Rows that cannot be taken apart cannot be counted either: they are one.
        Leaves::Whole { bytes, counted, .. } => Content::Whole { bytes, counted, rows: u32::from(counted) },
        Leaves::Rows { batch, requests, alone, .. } => rows(batch, requests, alone),
    }
}

fn rows(batch: Batch, requests: Box<[u64]>, alone: bool) -> Content {
    match alone {
        true => Content::Whole { bytes: batch.bytes().clone(), counted: true, rows: batch.rows() },
        false => Content::Rows { batch, requests },
    }
}

/// A sink, as frames are shared out.
pub(crate) struct Target {
    /// In the configuration, and in the journal.
    pub(crate) name: Name,
    pub(crate) kept_as: String,
    pub(crate) takes: Takes,
    /// The tokenizer that it is, as rows name it.
    pub(crate) worker: Option<String>,
    /// It is not in the configuration any more, and gets nothing that begins.
    pub(crate) leaves: bool,
}

fn reader(among: &Among, batch: &Batch, row: u32) -> u32 {
    let worker = among.worker(|| batch.http_worker_ipc(row));
    worker.unwrap_or_else(|| among.reader(|| reader_key(batch, row)))
}

/// How frames are shared out.
pub(crate) struct Route {
    /// In the path's order.
    sinks: Vec<Target>,
    /// Their names in the journal.
    names: Vec<String>,
    epochs: Epochs,
    telemetry: Telemetry,
    /// The sink of each row of the frame in hand, and its request; none where there are no rows, or one sink.
    targets: Vec<u32>,
    requests: Vec<u64>,
    some: Vec<u32>,
}

impl Route {
    /// Those that do not leave are in the order of the configuration. Where `shares` says how it was in an earlier run it is so
    /// still, and as the configuration says from these numbers on.
    pub(crate) fn new(
        sinks: Vec<Target>,
        shares: Option<&Shares>,
        next: (u64, FrameNo),
        telemetry: Telemetry,
    ) -> Route {
        let names: Vec<String> = sinks.iter().map(|sink| sink.kept_as.clone()).collect();
        let place = |name: &str| Some(names.iter().position(|known| known == name)? as u32);
        let stay = (0..).zip(&sinks).filter(|(_, sink)| !sink.leaves);
        let among = Among::new(stay);
        let mut epochs =
            shares.and_then(|shares| shares.epochs(place)).unwrap_or_else(|| Epochs::new(among.clone()));
        epochs.begin(next.0, next.1, among);
        let (targets, requests, some) = (Vec::new(), Vec::new(), Vec::new());
        Route { sinks, names, epochs, telemetry, targets, requests, some }
    }

    /// A further sink. It gets nothing before [`Route::begin`].
    pub(crate) fn add(&mut self, sink: Target) {
        self.names.push(sink.kept_as.clone());
        self.sinks.push(sink);
    }

    /// From these numbers on requests and frames are shared out among the sinks at these places, in the order of the
    /// configuration; the others leave.
    pub(crate) fn begin(&mut self, places: &[usize], (request, frame): (u64, FrameNo)) {
        for (place, sink) in self.sinks.iter_mut().enumerate() {
            sink.leaves = !places.contains(&place);
        }
        let sinks = places.iter().filter_map(|place| Some((*place as u32, self.sinks.get(*place)?)));
        self.epochs.begin(request, frame, Among::new(sinks));
    }

    /// The sink at this place is gone, those behind it move up.
    pub(crate) fn remove(&mut self, place: usize) {
        self.sinks.remove(place);
        self.names.remove(place);
        self.epochs.remove(place as u32);
    }

    /// The sink at this place has requests that live.
    pub(crate) fn is_awaited(&self, place: usize, live: &[Awaited]) -> bool {
        let place = place as u32;
        live.iter().any(|request| {
            let among = self.epochs.of(FrameNo(0), request.number);
            among.may_read(place, request.key) || (request.skips_detokenizer && among.skipped == Some(place))
        })
    }

    /// Lets go of what nobody needs any more of how it was before. Frames up to `through` have gone on, and those up to `taken`
    /// are with all sinks.
    pub(crate) fn pass(&mut self, live: &[Awaited], through: FrameNo, taken: FrameNo) {
        let oldest = live.iter().map(|request| request.number).min();
        let Route { sinks, epochs, .. } = self;
        let leaves = |place: u32| sinks.get(place as usize).is_some_and(|sink| sink.leaves);
        epochs.pass(oldest, through, taken, leaves);
    }

    /// The sink at this place is not in the configuration any more, and is there until it has all it was to get.
    pub(crate) fn leaves(&self, place: usize) -> bool {
        self.sinks.get(place).is_some_and(|sink| sink.leaves)
    }

    /// It is not as it was for all that is under way, or a sink leaves.
    pub(crate) fn has_past(&self) -> bool {
        self.epochs.has_past() || self.sinks.iter().any(|sink| sink.leaves)
    }

    /// In how many ways requests are shared out.
    pub(crate) fn epochs(&self) -> usize {
        self.epochs.len()
    }

    /// Since which request the sink past the detokenizer is the present one; `None`: there is none.
    pub(crate) fn skipped_since(&self) -> Option<u64> {
        self.epochs.skipped_since()
    }

    /// How it is, for the next start, with the sinks that leave; `None` where the configuration says all.
    pub(crate) fn to_shares(&self, leaving: Vec<Leaving>) -> Option<Shares> {
        self.has_past().then(|| Shares::new(&self.epochs, &self.sinks, leaving))
    }

    /// A frame's share for each sink, in their order.
    pub(crate) fn shares(&mut self, frame: FrameNo, leaves: Leaves, shares: &mut Vec<Content>) {
        shares.clear();
        self.targets.clear();
        if self.sinks.len() == 1 && !self.epochs.has_past() {
            return shares.push(whole(leaves));
        }
        match leaves {
            Leaves::Rows { batch, requests, alone, aside } => {
                self.aim(frame, &batch, &requests, &aside);
                self.split(frame, batch, &requests, alone, shares);
            }
            Leaves::Whole { bytes, counted, to_all } => {
                let first = self.epochs.of_frame(frame).readers.first();
                let share = |(place, sink): (u32, &Target)| match first == Some(&place)
                    || (to_all && sink.takes == Takes::Share)
                {
                    true => Content::Whole { bytes: bytes.clone(), counted, rows: u32::from(counted) },
                    false => Content::Nothing,
                };
                shares.extend((0..).zip(&self.sinks).map(share));
            }
            Leaves::Nothing => shares.extend(self.sinks.iter().map(|_| Content::Nothing)),
        }
    }

    /// Tells the journal to which sinks the rows went of the frame that was shared out last.
    pub(crate) fn tell(&self, frame: FrameNo, keep: &mut Keep) {
        if !self.targets.is_empty() {
            keep.routed(frame, &self.names, &self.requests, &self.targets);
        }
    }

    /// One sink's share of a frame.
    pub(crate) fn share(&mut self, frame: FrameNo, leaves: Leaves, sink: usize) -> Content {
        let mut shares = Vec::new();
        self.shares(frame, leaves, &mut shares);
        if sink < shares.len() { shares.swap_remove(sink) } else { Content::Nothing }
    }

    /// How it is for the request of a row.
    fn among(&self, frame: FrameNo, row: u32) -> &Among {
        self.epochs.of(frame, self.requests.get(row as usize).copied().unwrap_or(0))
    }

    /// The reader of a row.
    fn reader_of(&self, frame: FrameNo, batch: &Batch, row: u32) -> u32 {
        reader(self.among(frame, row), batch, row)
    }

    /// The sink, by name, that the request's rows go to unless plugins say otherwise; `None` where it is not known.
    pub(crate) fn reader_name(&self, request: u64, reader: &Reader) -> Option<&Name> {
        let place = self.epochs.of(FrameNo(0), request).reader_if_known(reader)?;
        Some(&self.sinks.get(place as usize)?.name)
    }

    /// Finds the sink of each row.
    fn aim(&mut self, frame: FrameNo, batch: &Batch, requests: &[u64], aside: &[(u32, Way)]) {
        self.requests.clear();
        self.requests.extend_from_slice(requests);
        let mut targets = std::mem::take(&mut self.targets);
        targets.extend((0..batch.rows()).map(|row| self.reader_of(frame, batch, row)));
        for (row, way) in aside {
            let sink = match way {
                Way::To(name) => self.epochs.of_frame(frame).routed(name),
                Way::SkipDetokenizer => self.among(frame, *row).skipped,
            };
            // The sinks may be others than in the run that said so: then it goes to its reader.
            if let (Some(sink), Some(target)) = (sink, targets.get_mut(*row as usize)) {
                *target = sink;
            }
        }
        self.targets = targets;
    }

    /// The rows of a sink, in `self.some`.
    fn of_sink(&mut self, sink: u32) {
        self.some.clear();
        let of_sink = (0..).zip(&self.targets).filter(|(_, target)| **target == sink);
        self.some.extend(of_sink.map(|(row, _)| row));
    }

    fn split(
        &mut self,
        frame: FrameNo,
        batch: Batch,
        requests: &[u64],
        alone: bool,
        shares: &mut Vec<Content>,
    ) {
        let mut past = self.past_detokenizer(frame, &batch);
        let first = self.targets.first().copied().unwrap_or(0);
        if past.is_empty() && self.targets.iter().all(|target| *target == first) {
            shares.extend(self.sinks.iter().map(|_| Content::Nothing));
            if let Some(share) = shares.get_mut(first as usize) {
                *share = rows(batch, requests.into(), alone);
            }
            return;
        }
        for sink in 0..self.sinks.len() as u32 {
            self.of_sink(sink);
            let number = |row: &u32| requests.get(*row as usize).copied().unwrap_or(0);
            let numbers = self.some.iter().map(number).collect();
            let share = match past.pop_if(|(skipped, _)| *skipped == sink) {
                Some((_, past)) => rows(past, numbers, alone),
                None if self.some.is_empty() => Content::Nothing,
                None => match batch.take(&self.some) {
                    Ok(part) => rows(part, numbers, alone),
                    Err(error) => return self.unsplit(frame, &batch, error.to_string(), shares),
                },
            };
            shares.push(share);
        }
    }

    /// What goes past the detokenizer, and to which sinks, the last one first. Where that cannot be written, the rows go to
    /// their reader.
    fn past_detokenizer(&mut self, frame: FrameNo, batch: &Batch) -> Vec<(u32, Batch)> {
        let mut all = Vec::new();
        for sink in (0..self.sinks.len()).rev() {
            if self.sinks[sink].takes != Takes::Skipped {
                continue;
            }
            self.of_sink(sink as u32);
            if self.some.is_empty() {
                continue;
            }
            match batch.without_detokenizing(&self.some) {
                Ok(past) => all.push((sink as u32, past)),
                Err(error) => {
                    let (stream, rows) = (self.telemetry.stream.clone(), self.some.len() as u64);
                    let why = error.to_string();
                    self.telemetry.publish(RowsNotSkipped { stream, frame: frame.0, rows, why });
                    for row in std::mem::take(&mut self.some) {
                        self.targets[row as usize] = self.reader_of(frame, batch, row);
                    }
                }
            }
        }
        all
    }

    /// It cannot be taken apart: all of it goes to the reader of its first row, so that no token is lost or comes twice. Where
    /// workers have sinks, to the one before them all, which knows the way to each.
    fn unsplit(&mut self, frame: FrameNo, batch: &Batch, why: String, shares: &mut Vec<Content>) {
        shares.clear();
        let among = self.among(frame, 0);
        let reader = match among.readers.first() {
            Some(first) if !among.workers.is_empty() => *first,
            _ => self.reader_of(frame, batch, 0),
        };
        self.targets.fill(reader);
        shares.extend((0..self.sinks.len() as u32).map(|sink| match sink == reader {
            true => Content::Whole { bytes: batch.bytes().clone(), counted: true, rows: batch.rows() },
            false => Content::Nothing,
        }));
        let (stream, rows) = (self.telemetry.stream.clone(), u64::from(batch.rows()));
        self.telemetry.publish(BatchUnsplit { stream, frame: frame.0, rows, why });
    }
}
