//! What the writer is told of sinks: what each was sent, and how far it has taken the stream.

use super::{Told, Writer};
use crate::bounds::SINKS_MAX;
use crate::error::{SentError, WriteError};
use crate::outcome::Credit;
use crate::position::{FrameNo, RequestNo};
use crate::record::{FORGOTTEN, VOID, put_handed, put_routed, put_sent, put_taken, sink_of};
use crate::sink_progress::{Handed, Held, Sent, Sink};
use crate::text_file;

impl Writer {
    /// The sink's reader (or the kernel, for it) has taken every frame up to this one. Goes out with the next write.
    pub fn taken(&mut self, sink: &str, through: FrameNo, credit: Option<Credit>) {
        self.taken_sent(sink, 0, through, credit);
    }

    /// The same for a sink whose frames are told of with [`Writer::sent`]: it has taken those up to `sequence`, and with
    /// them everything of the frames up to `through`. Retention keeps what is past that.
    pub fn taken_sent(&mut self, sink: &str, sequence: u64, through: FrameNo, credit: Option<Credit>) {
        let Some(at) = self.sink(sink) else { return };
        let (sink, told) = (&mut self.sinks[at], &mut self.told[at]);
        if (sink.through(), sink.credit()) == (through, credit) && sequence <= sink.sequence() {
            return;
        }
        sink.pass(through);
        sink.take(sequence);
        sink.set_credit(credit);
        *told = Told::No;
    }

    /// A frame with this content is about to be handed to the sink's socket, as its `sequence`th: one more than the last.
    /// Goes out with the next write: [`Writer::flush`] before the kernel gets it. Some 50 bytes for a whole frame, 8 more
    /// for each request otherwise. Refused where too much is ahead; then nothing is noted.
    pub fn sent(&mut self, sink: &str, sequence: u64, content: Sent<'_>) -> Result<(), SentError> {
        let Some(at) = self.sink(sink) else { return Ok(()) };
        self.sinks[at].has_room(content)?;
        let held = match content {
            Sent::Whole(frame) => Held::Whole(frame),
            Sent::Rows(rows) => Held::Rows(rows.into()),
        };
        self.sinks[at].send(sequence, held);
        self.add(|pending| put_sent(pending, sink, sequence, content));
        Ok(())
    }

    /// Where a stream has several sinks: the rows of this frame, by their requests' numbers, go to these of them (places
    /// among `sinks`; of [`SINKS_MAX`] or more nothing is noted). For those who ask later who was given a row: a start does
    /// without it. Goes out with the next write; 5 bytes a row, and the names.
    pub fn routed(&mut self, frame: FrameNo, sinks: &[String], requests: &[u64], targets: &[u32]) {
        if sinks.len() < SINKS_MAX {
            self.add(|pending| put_routed(pending, frame, sinks, requests, targets));
        }
    }

    /// The kernel has what was sent up to there: a reader of this generation gets it, whatever becomes of this process. Goes
    /// out with the next write.
    pub fn handed(&mut self, sink: &str, handed: Handed) {
        let Some(at) = self.sink(sink) else { return };
        self.sinks[at].set_handed(handed);
        self.add(|pending| put_handed(pending, sink, handed));
    }

    /// After a restart: of what the last run has sent to the sink, it has taken the frames up to `sequence`, where its count
    /// stood at `credit`, and those after it never arrived. Their rows are to be sent anew, in frames numbered from [`Sink::last_sent`] + 1 on.
    pub fn resume(&mut self, sink: &str, sequence: u64, credit: Option<Credit>) {
        let Some(at) = self.sink(sink) else { return };
        self.sinks[at].set_credit(credit);
        self.sinks[at].take(sequence);
        self.sinks[at].void();
        let mut record = Vec::new();
        put_taken(&mut record, &self.sinks[at], VOID);
        self.told[at] = Told::Yes;
        self.add(|pending| pending.extend_from_slice(&record));
    }

    /// How the stream's requests are shared out among its sinks, as the stream words it, for its next start
    /// ([`Recovered::shares`](crate::Recovered)); empty: nothing is to be said. Written at once, and synced. At most 1 MiB.
    pub fn set_shares(&self, text: &str) -> Result<(), WriteError> {
        Ok(text_file::write(&*self.root.storage, &self.shared.dir, text_file::SHARES, text)?)
    }

    /// The number of the request that is opened next.
    pub fn next_request(&self) -> RequestNo {
        RequestNo(self.next_request)
    }

    /// How far a sink has taken the stream, and what it was sent after that.
    pub fn known_sink(&self, name: &str) -> Option<&Sink> {
        self.sinks.iter().find(|sink| sink.name() == name)
    }

    /// The sink is no more: nothing is kept for it.
    pub fn forget(&mut self, sink: &str) {
        let Some(at) = self.sinks.iter().position(|known| known.name() == sink) else { return };
        let (gone, _) = (self.sinks.remove(at), self.told.remove(at));
        self.add(|pending| put_taken(pending, &gone, FORGOTTEN));
    }

    fn sink(&mut self, name: &str) -> Option<usize> {
        sink_of(&mut self.sinks, name)?;
        self.told.resize(self.sinks.len(), Told::No);
        self.sinks.iter().position(|sink| sink.name() == name)
    }
}
