//! Records what each sink was sent, and what its reader has taken.

use super::JournalWriter;
use crate::bounds::SINKS_MAX;
use crate::format::{RecordKind, put};
use crate::position::FrameNo;
use crate::record::{Taken, put_routed, put_sent, sink_of};
use crate::sink_progress::{Credit, SendRoom, SentFrame, SinkContent, SinkProgress};

impl JournalWriter {
    /// Records that the sink's reader was found at this time to have taken the frames up to `sequence`
    /// ([`JournalWriter::sent`]), and everything of the frames up to `through`. Retention keeps the frames after
    /// `through`. One record of a write stands for all calls since the last write, with the time of the last.
    pub fn taken(
        &mut self,
        sink: &str,
        sequence: u64,
        through: FrameNo,
        credit: Option<Credit>,
        now_unix_ns: u64,
    ) {
        let now_unix_ns = self.not_before_receipt(now_unix_ns);
        let Some(at) = self.sink(sink) else { return };
        let (sink, taken_recorded) = (&mut self.totals.sinks[at], &mut self.taken_recorded[at]);
        if (sink.through(), sink.credit()) == (through, credit) && sequence <= sink.sequence() {
            return;
        }
        sink.pass(through);
        sink.take_at(sequence, now_unix_ns);
        sink.set_credit(credit);
        *taken_recorded = false;
    }

    /// Records that the sink's socket is about to get, now, a frame with this content as its frame number
    /// `sequence`, one more than the last. Call [`JournalWriter::flush`] before the kernel gets the frame.
    /// The record takes some 50 bytes for a whole frame, and 8 more for each request otherwise. Ask
    /// [`JournalWriter::send_room`] before.
    pub fn sent(&mut self, sink: &str, sequence: u64, content: SinkContent<'_>, now_unix_ns: u64) {
        let now_unix_ns = self.not_before_receipt(now_unix_ns);
        let Some(at) = self.sink(sink) else { return };
        // Sent first: the record may begin a segment, which lists what each sink was sent.
        let mut record = Vec::new();
        put_sent(&mut record, sink, sequence, &content, now_unix_ns);
        self.totals.sinks[at].send(SentFrame {
            sequence,
            content: content.into_owned(),
            unix_ns: now_unix_ns,
        });
        self.add(|pending| pending.extend_from_slice(&record));
    }

    /// Which frames the sink may be sent now.
    pub fn send_room(&self, sink: &str) -> SendRoom {
        self.known_sink(sink).map_or(SendRoom::Any, SinkProgress::send_room)
    }

    /// Records the sinks of a frame's rows, for a stream with several sinks: for each request its index into
    /// `sinks`. Does nothing for [`SINKS_MAX`] or more sinks. Only queries need this record; a start does
    /// not. It takes 5 bytes per row, and the names.
    pub fn routed(&mut self, frame: FrameNo, sinks: &[String], requests: &[u64], targets: &[u32]) {
        if sinks.len() < SINKS_MAX {
            self.add(|pending| put_routed(pending, frame, sinks, requests, targets));
        }
    }

    /// Records after a restart that the reader has taken the frames up to `sequence`, with its count at
    /// `credit`, and that later frames never arrived. The stream sends their rows again, in frames numbered
    /// from [`SinkProgress::last_sent`] + 1.
    pub fn resume(&mut self, sink: &str, sequence: u64, credit: Option<Credit>) {
        let Some(at) = self.sink(sink) else { return };
        self.totals.sinks[at].set_credit(credit);
        self.totals.sinks[at].take_at(sequence, self.root.storage.now_unix_ns());
        self.totals.sinks[at].void();
        let taken = Taken { void: true, ..Taken::by(&self.totals.sinks[at]) };
        self.taken_recorded[at] = true;
        self.add(|pending| put(pending, RecordKind::TAKEN, 0, 0, &taken));
    }

    /// Progress of a sink, if it is known.
    pub fn known_sink(&self, name: &str) -> Option<&SinkProgress> {
        self.totals.sinks.iter().find(|sink| sink.name() == name)
    }

    /// Removes a sink.
    pub fn forget(&mut self, sink: &str) {
        let Some(at) = self.totals.sinks.iter().position(|known| known.name() == sink) else { return };
        let (gone, _) = (self.totals.sinks.remove(at), self.taken_recorded.remove(at));
        let taken = Taken { forgotten: true, ..Taken::by(&gone) };
        self.add(|pending| put(pending, RecordKind::TAKEN, 0, 0, &taken));
    }

    /// The time, but not before the last frame was received: a stream reads the clock before it receives. 0 stays unknown.
    fn not_before_receipt(&self, now_unix_ns: u64) -> u64 {
        if now_unix_ns == 0 { 0 } else { now_unix_ns.max(self.totals.last_unix_ns) }
    }

    fn sink(&mut self, name: &str) -> Option<usize> {
        sink_of(&mut self.totals.sinks, name)?;
        self.taken_recorded.resize(self.totals.sinks.len(), false);
        self.totals.sinks.iter().position(|sink| sink.name() == name)
    }
}
