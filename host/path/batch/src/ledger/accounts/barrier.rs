//! Frames that are forwarded whole: frames without rows, and frames that cannot be read.

use super::Ledger;
use crate::records::Records;
use crate::{Content, DecodedBarrier, Persisted, Settled, SettledContent};
use afterbay_events::Barrier as BarrierLabel;
use afterbay_events::event::FrameNotUnderstood;
use afterbay_journal::{JournalRequest, Outcome, Passage};
use afterbay_wire::BarrierKind;

/// The consequence in the event of a frame that is forwarded whole.
const FORWARDED: &str = "forwarded unchanged";

impl Ledger {
    /// Records a frame without rows, and forwards the frame.
    pub(super) fn forward_barrier(&self, decoded: DecodedBarrier, records: &mut Records) -> Settled {
        let (barrier, persisted) = (decoded.barrier(), decoded.persisted());
        let text = barrier.kind.to_string();
        let (label, passage) = match &barrier.kind {
            BarrierKind::Control { .. }
            | BarrierKind::Introduction { .. }
            | BarrierKind::Request { .. }
            | BarrierKind::End { .. }
            | BarrierKind::Left { .. }
            | BarrierKind::Signals => (BarrierLabel::Control, Passage::Barrier((&text).into())),
            BarrierKind::Idle { .. } => (BarrierLabel::Idle, Passage::Barrier((&text).into())),
            BarrierKind::NotUnderstood { error } => {
                self.report_not_understood(persisted, error.label(), text.clone(), FORWARDED.to_owned());
                (BarrierLabel::NotUnderstood, Passage::NotUnderstood((&text).into()))
            }
        };
        self.telemetry.counters.barriers.add(label, 1);
        records.record_outcome(&without_rows(persisted, passage));
        let content = SettledContent::from_barrier(barrier);
        decoded.into_settled(content)
    }

    /// Forwards a poison frame unchanged.
    pub fn forward_poison(&self, persisted: Persisted, why: String, records: &mut Records) -> Settled {
        self.telemetry.counters.barriers.add(BarrierLabel::NotUnderstood, 1);
        records.record_outcome(&without_rows(&persisted, Passage::NotUnderstood((&why).into())));
        self.report_not_understood(&persisted, "panic", why, FORWARDED.to_owned());
        // Nearly all frames have rows, and readers count these.
        let content = Content::undecoded(persisted.bytes().clone(), true);
        Settled::undecoded(persisted, content)
    }

    /// Publishes the event of a frame whose rows plugins do not see.
    pub(super) fn report_not_understood(&self, persisted: &Persisted, kind: &str, why: String, then: String) {
        self.telemetry.publish(FrameNotUnderstood {
            stream: self.telemetry.stream.clone(),
            frame: persisted.frame().0,
            bytes: persisted.bytes().len() as u64,
            kind: kind.to_owned(),
            why,
            then,
        });
    }
}

/// The outcome of a frame without rows, or of a frame whose rows are not known.
pub(super) fn without_rows<'a>(persisted: &Persisted, passage: Passage<'a>) -> Outcome<'a, JournalRequest> {
    Outcome::new(persisted.frame(), persisted.at().unix_ns, passage)
}
