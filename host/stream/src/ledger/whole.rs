//! Frames that go on whole: without rows, not understood, or not to be accounted.

use super::{Ledger, Settled};
use crate::keep::{Keep, Kept};
use crate::route::Leaves;
use afterbay_events::Barrier as BarrierLabel;
use afterbay_events::event::FrameNotUnderstood;
use afterbay_journal as journal;
use afterbay_wire::{BarrierKind, Batch};

/// What becomes of a frame that nobody can read, where no plugin minds.
const PASSED_ON: &str = "passed on as it came";

impl Ledger {
    pub(super) fn settle_barrier(
        &self,
        kept: Kept,
        barrier: &afterbay_wire::Barrier,
        keep: &mut Keep,
    ) -> Settled {
        let text = barrier.kind.to_string();
        let (label, passage) = match &barrier.kind {
            BarrierKind::Control { .. } => (BarrierLabel::Control, journal::Passage::Barrier(&text)),
            BarrierKind::Idle { .. } => (BarrierLabel::Idle, journal::Passage::Barrier(&text)),
            BarrierKind::NotUnderstood { error } => {
                self.telemetry.publish(FrameNotUnderstood {
                    stream: self.telemetry.stream.clone(),
                    frame: kept.frame.0,
                    bytes: barrier.bytes().len() as u64,
                    kind: error.label().to_owned(),
                    why: text.clone(),
                    then: PASSED_ON.to_owned(),
                });
                (BarrierLabel::NotUnderstood, journal::Passage::NotUnderstood(&text))
            }
        };
        self.telemetry.counters.barriers.add(label, 1);
        keep.outcome(&whole(&kept, passage));
        Settled { kept, leaves: Leaves::of_barrier(barrier) }
    }

    /// A frame that nobody could look at without a panic goes on as it came.
    pub(crate) fn carry_unread(&self, kept: Kept, why: String, keep: &mut Keep) -> Settled {
        self.telemetry.counters.barriers.add(BarrierLabel::NotUnderstood, 1);
        keep.outcome(&whole(&kept, journal::Passage::NotUnderstood(&why)));
        let bytes = kept.bytes.clone();
        self.telemetry.publish(FrameNotUnderstood {
            stream: self.telemetry.stream.clone(),
            frame: kept.frame.0,
            bytes: bytes.len() as u64,
            kind: "panic".to_owned(),
            why,
            then: PASSED_ON.to_owned(),
        });
        // As nearly all frames do, it is taken to hold rows.
        Settled { kept, leaves: Leaves::Whole { bytes, counted: true, to_all: false } }
    }

    /// A batch that the journal has no numbers for goes on as a barrier: no token is lost, none is accounted.
    pub(super) fn carry_whole(&self, kept: Kept, batch: Batch, why: String, keep: &mut Keep) -> Settled {
        self.telemetry.counters.barriers.add(BarrierLabel::Whole, 1);
        keep.outcome(&whole(&kept, journal::Passage::NotUnderstood(&why)));
        self.telemetry.publish(FrameNotUnderstood {
            stream: self.telemetry.stream.clone(),
            frame: kept.frame.0,
            bytes: batch.bytes().len() as u64,
            kind: "not accounted".to_owned(),
            why,
            then: PASSED_ON.to_owned(),
        });
        let requests = vec![0; batch.rows() as usize].into();
        Settled { kept, leaves: Leaves::Rows { batch, requests, alone: true, aside: Vec::new() } }
    }
}

/// What the journal is told of a frame without rows, or of none of whose rows anything is known.
pub(super) fn whole<'a>(kept: &Kept, passage: journal::Passage<'a>) -> journal::Outcome<'a> {
    journal::Outcome {
        frame: kept.frame,
        received_unix_ns: kept.at.unix_ns,
        passage,
        changed: None,
        requests: &[],
        tokens: &[],
        finished: &[],
        gaps: &[],
        actions: &[],
    }
}
