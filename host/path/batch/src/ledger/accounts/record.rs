//! The record of a request: the request is live from here on, before it has a row.

use super::barrier::without_rows;
use super::{Ledger, Request};
use crate::records::Records;
use crate::{DecodedBarrier, Location, Persisted, ReaderKey};
use afterbay_events::Barrier as BarrierLabel;
use afterbay_journal::reader::StreamReader;
use afterbay_journal::{FrameNo, JournalRequest, Outcome, Passage, Position, stored_rid};
use afterbay_wire::{RequestRecord, is_health_check};
use std::sync::Arc;

/// The place of a record in the journal.
#[derive(Clone, Copy)]
pub(super) enum RecordPlace {
    /// At this position.
    At(Position),
    /// In this frame of an earlier run, which must be searched for.
    Frame(FrameNo),
}

/// The record of a request, in the journal.
#[derive(Clone)]
pub struct StoredRecord(Source);

#[derive(Clone)]
enum Source {
    /// The stream's own journal.
    Own { journal: Arc<StreamReader>, place: RecordPlace },
    /// The stream before this one, if it has a request with this rid.
    Before { rid: Arc<str>, find: FindRecord },
}

/// Finds the record of a rid on the streams before a stream.
pub type FindRecord = Arc<dyn Fn(&str) -> Option<StoredRecord> + Send + Sync>;

/// Takes the record of a rid.
pub type PublishRecord = Box<dyn Fn(&str, StoredRecord) + Send>;

/// The way of records from a scheduler's stream to the stream of its detokenizer's output.
#[derive(Default)]
pub struct RecordLinks {
    /// Takes the record of each rid, for streams behind this one. The call must not block.
    pub publish: Option<PublishRecord>,
    /// Finds the records that the streams before this one have. Called when a plugin asks.
    pub find: Option<FindRecord>,
}

impl StoredRecord {
    /// The frame of a record of the stream's own.
    pub fn frame(&self) -> Option<FrameNo> {
        match &self.0 {
            Source::Own { place: RecordPlace::At(position), .. } => Some(position.frame),
            Source::Own { place: RecordPlace::Frame(frame), .. } => Some(*frame),
            Source::Before { .. } => None,
        }
    }

    /// Reads the record. `None`: the journal no longer has it, it cannot be read, or no stream before has one.
    pub fn read(&self) -> Option<RequestRecord> {
        let (journal, place) = match &self.0 {
            Source::Own { journal, place } => (journal, *place),
            Source::Before { rid, find } => return find(rid)?.read(),
        };
        let at = match place {
            RecordPlace::At(position) => position,
            RecordPlace::Frame(frame) => journal.position(frame).ok()??,
        };
        let frame = journal.frame(&at).ok()?;
        RequestRecord::of_frame(&frame.bytes.into())?.ok()
    }
}

/// The place of a record that was just persisted. `None`: the disk refused it.
fn place(persisted: &Persisted) -> Option<RecordPlace> {
    match persisted.location() {
        Location::At(position) => Some(RecordPlace::At(position)),
        Location::ByNumber => Some(RecordPlace::Frame(persisted.frame())),
        Location::Nowhere => None,
    }
}

impl Ledger {
    /// The record of the live request with this number.
    pub fn record_of(&self, number: u64) -> Option<StoredRecord> {
        let handle = self.numbered(number)?;
        if let Some(place) = self.requests.get(handle)?.record {
            return self.stored(place);
        }
        let find = self.links.records.find.clone()?;
        Some(StoredRecord(Source::Before { rid: self.requests.rid(handle)?.into(), find }))
    }

    pub(super) fn stored(&self, place: RecordPlace) -> Option<StoredRecord> {
        let journal = self.links.journal.clone()?;
        Some(StoredRecord(Source::Own { journal, place }))
    }

    /// Gives a record to the streams behind this one.
    pub(super) fn publish_record(&self, name: &str, place: Option<RecordPlace>) {
        if let Some(publish) = &self.links.records.publish
            && let Some(record) = place.and_then(|place| self.stored(place))
        {
            publish(name, record);
        }
    }

    /// Takes the requests that began in a frame that no plugin is called with: those that a record opened, and those of a frame
    /// that [`Ledger::recover`] settled. The plugins are to be told of them.
    pub fn take_unannounced(&mut self) -> Vec<JournalRequest> {
        let mut begun = std::mem::take(&mut self.unannounced);
        begun.retain(|handle| {
            let request = self.requests.get_mut(*handle);
            request.map(|request| request.is_announced = true).is_some()
        });
        begun
    }

    /// Opens the request of a record. A live request with its rid has the record, too: Afterbay knows the request by its rows, or a rid
    /// is there twice. Nothing is sent.
    pub(super) fn account_record(
        &mut self,
        record: &RequestRecord,
        decoded: &DecodedBarrier,
        records: &mut Records,
    ) {
        let persisted = decoded.persisted();
        let name = stored_rid(record.rid.as_bytes());
        let known = self.requests.find(name.as_bytes());
        // Past the bound a request begins with its first row, for which room is made.
        let has_room = self.live() < self.bound.max && !is_health_check(name.as_bytes());
        if let Some(known) =
            known.and_then(|known| self.requests.get_mut(known)).filter(|it| it.record.is_none())
        {
            (known.record, known.of_engine) = (place(persisted), record.attributes());
        }
        if let Some(known) = known {
            self.migrate_to(known, record, persisted, records);
        }
        let request =
            known.or_else(|| has_room.then(|| self.open_recorded(&name, record, persisted, records)));
        if request.is_some() {
            self.publish_record(&name, place(persisted));
        }
        let text = decoded.barrier().kind.to_string();
        self.telemetry.counters.barriers.add(BarrierLabel::Control, 1);
        let (requests, tokens) = (request.as_slice(), [0]);
        records.record_outcome(&Outcome {
            requests: requests.into(),
            tokens: tokens[..requests.len()].into(),
            ..without_rows(persisted, Passage::Barrier((&text).into()))
        });
    }

    fn open_recorded(
        &mut self,
        name: &str,
        record: &RequestRecord,
        persisted: &Persisted,
        records: &mut Records,
    ) -> JournalRequest {
        let of_engine = record.attributes();
        let handle = records.open_request(name, &of_engine);
        let request = Request {
            is_rid_hashed: name != record.rid,
            prompt_tokens: record.prompt_tokens.unwrap_or(0),
            attributes: self.links.attributes.as_ref().and_then(|of| of(name, &of_engine)),
            of_engine,
            record: place(persisted),
            reader: ReaderKey::of_record(record),
            ..Request::new(handle, persisted.at())
        };
        self.telemetry.counters.requests_opened.add(1);
        self.requests.insert(handle, name, request);
        self.unannounced.push(handle);
        handle
    }
}
