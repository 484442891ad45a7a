//! Frames that go on whole: without rows, not understood, or not to be accounted.

use super::Ledger;
use afterbay_batch::{Persisted, Settled, SettledContent};
use afterbay_events::Barrier as BarrierLabel;
use afterbay_events::event::FrameNotUnderstood;
use afterbay_journal as journal;
use afterbay_persist::Persister;
use afterbay_wire::{BarrierKind, Batch};

/// What becomes of a frame that nobody can read, where no plugin minds.
const PASSED_ON: &str = "passed on as it came";

impl Ledger {
    pub fn settle_barrier(
        &self,
        persisted: Persisted,
        barrier: &afterbay_wire::Barrier,
        persister: &mut Persister,
    ) -> Settled {
        let text = barrier.kind.to_string();
        let (label, passage) = match &barrier.kind {
            BarrierKind::Control { .. } => (BarrierLabel::Control, journal::Passage::Barrier((&text).into())),
            BarrierKind::Idle { .. } => (BarrierLabel::Idle, journal::Passage::Barrier((&text).into())),
            BarrierKind::NotUnderstood { error } => {
                self.telemetry.publish(FrameNotUnderstood {
                    stream: self.telemetry.stream.clone(),
                    frame: persisted.frame.0,
                    bytes: barrier.bytes().len() as u64,
                    kind: error.label().to_owned(),
                    why: text.clone(),
                    then: PASSED_ON.to_owned(),
                });
                (BarrierLabel::NotUnderstood, journal::Passage::NotUnderstood((&text).into()))
            }
        };
        self.telemetry.counters.barriers.add(label, 1);
        persister.record_outcome(&whole(&persisted, passage));
        Settled { persisted, content: SettledContent::of_barrier(barrier) }
    }

    /// A frame that nobody could look at without a panic goes on as it came.
    pub fn carry_unread(&self, persisted: Persisted, why: String, persister: &mut Persister) -> Settled {
        self.telemetry.counters.barriers.add(BarrierLabel::NotUnderstood, 1);
        persister.record_outcome(&whole(&persisted, journal::Passage::NotUnderstood((&why).into())));
        let bytes = persisted.bytes.clone();
        self.telemetry.publish(FrameNotUnderstood {
            stream: self.telemetry.stream.clone(),
            frame: persisted.frame.0,
            bytes: bytes.len() as u64,
            kind: "panic".to_owned(),
            why,
            then: PASSED_ON.to_owned(),
        });
        // As nearly all frames do, it is taken to hold rows.
        Settled { persisted, content: SettledContent::Whole { bytes, counted: true, to_all: false } }
    }

    /// A batch that the journal has no numbers for goes on as a barrier: no token is lost, none is accounted.
    pub fn carry_whole(
        &self,
        persisted: Persisted,
        batch: Batch,
        why: String,
        persister: &mut Persister,
    ) -> Settled {
        self.telemetry.counters.barriers.add(BarrierLabel::Whole, 1);
        persister.record_outcome(&whole(&persisted, journal::Passage::NotUnderstood((&why).into())));
        self.telemetry.publish(FrameNotUnderstood {
            stream: self.telemetry.stream.clone(),
            frame: persisted.frame.0,
            bytes: batch.bytes().len() as u64,
            kind: "not accounted".to_owned(),
            why,
            then: PASSED_ON.to_owned(),
        });
        let requests = vec![0; batch.rows() as usize].into();
        Settled {
            persisted,
            content: SettledContent::Rows { batch, requests, alone: true, aside: Vec::new() },
        }
    }
}

/// What the journal is told of a frame without rows, or of none of whose rows anything is known.
pub fn whole<'a>(
    persisted: &Persisted,
    passage: journal::Passage<'a>,
) -> journal::Outcome<'a, journal::JournalRequest> {
    journal::Outcome::new(persisted.frame, persisted.at.unix_ns, passage)
}
