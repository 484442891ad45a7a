//! The live requests, as `open` reports them to an instance of a plugin.

use afterbay_batch::ledger::{Ledger, Request, StoredRecord};
use afterbay_runtime::{AskedRequest, Fault, Opened, Plugin, RecordReader};
use afterbay_wire::RequestRecord;
use std::sync::Arc;

/// The live requests, including those of the current batch.
pub fn live(ledger: &Ledger) -> Vec<Opened<'_>> {
    visible(ledger).map(|(rid, request)| resumed(rid, request, ledger)).collect()
}

/// The requests whose rows plugins see.
fn visible(ledger: &Ledger) -> impl Iterator<Item = (&str, &Request)> {
    ledger.requests().filter(|(_, request)| !request.is_hidden())
}

fn resumed<'l>(rid: &'l str, request: &'l Request, ledger: &'l Ledger) -> Opened<'l> {
    Opened { received_tokens: request.received, resumed: true, ..beginning(rid, request, ledger) }
}

/// A request that is opened between two batches: one that begins, or that has had rows which no plugin saw.
pub fn open_without_row<'l>(rid: &'l str, request: &'l Request, ledger: &'l Ledger) -> Opened<'l> {
    let opened = if request.has_row { resumed } else { beginning };
    opened(rid, request, ledger)
}

/// A request that begins.
pub fn beginning<'l>(rid: &'l str, request: &'l Request, ledger: &'l Ledger) -> Opened<'l> {
    Opened {
        request: request.handle.number().0,
        rid,
        front_end: &request.reader.front_end,
        sink: ledger.sink_name(request).map_or("", |name| name),
        arrived_ms: request.arrived_ms(),
        prompt_tokens: request.prompt_tokens,
        received_tokens: 0,
        resumed: false,
    }
}

/// Opens requests in an instance, with their attributes.
pub fn open(plugin: &mut Plugin, requests: &[Opened<'_>], ledger: &Ledger) -> Result<(), Fault> {
    if plugin.component().grants().request {
        for opened in requests {
            plugin.set_attributes(opened.request, ledger.attributes(opened.request));
            plugin.set_record(opened.request, ledger.record_of(opened.request).map(reader_of));
        }
    }
    plugin.open(requests)
}

fn reader_of(record: StoredRecord) -> RecordReader {
    Arc::new(move || record.read().map(|record| asked_request(&record)))
}

/// The record of a request as plugins read it.
pub fn asked_request(record: &RequestRecord) -> AskedRequest {
    let prompt_ids = record.prompt_ids().map(|ids| ids.map(i64::from).collect());
    AskedRequest { asked: record.json(), prompt_ids }
}

/// An owned copy of [`Opened`] with the request's attributes, for an instance that opens the request later.
#[derive(Clone)]
pub struct OpenedRequest {
    /// The request's number in its stream.
    pub request: u64,
    /// The scheduler's name for the request.
    pub rid: Box<str>,
    /// The front end that waits for the request; empty if rows name none.
    pub front_end: Box<str>,
    /// The sink of the request's rows.
    pub sink: Box<str>,
    /// The time at which the record, or else the first row, was received, in milliseconds since 1970.
    pub arrived_ms: u64,
    /// The length of the prompt in tokens.
    pub prompt_tokens: u64,
    /// Tokens that were received for the request and that the instance does not see.
    pub received_tokens: u64,
    /// Whether the request began before the instance.
    pub resumed: bool,
    /// The request's attributes, as JSON.
    pub attributes: Option<Arc<str>>,
    /// The request's record.
    pub record: Option<StoredRecord>,
}

impl OpenedRequest {
    /// Copies the facts of `opened` and the attributes of its request.
    pub fn new(opened: &Opened<'_>, ledger: &Ledger) -> OpenedRequest {
        OpenedRequest {
            request: opened.request,
            rid: opened.rid.into(),
            front_end: opened.front_end.into(),
            sink: opened.sink.into(),
            arrived_ms: opened.arrived_ms,
            prompt_tokens: opened.prompt_tokens,
            received_tokens: opened.received_tokens,
            resumed: opened.resumed,
            attributes: ledger.attributes(opened.request),
            record: ledger.record_of(opened.request),
        }
    }

    /// Opens these requests in an instance.
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn open(requests: &[OpenedRequest], plugin: &mut Plugin) -> Result<(), Fault> {
        for opened in requests {
            plugin.set_attributes(opened.request, opened.attributes.clone());
            plugin.set_record(opened.request, opened.record.clone().map(reader_of));
        }
        let opened: Vec<Opened<'_>> = requests.iter().map(OpenedRequest::opened).collect();
        plugin.open(&opened)
    }

    fn opened(&self) -> Opened<'_> {
        Opened {
            request: self.request,
            rid: &self.rid,
            front_end: &self.front_end,
            sink: &self.sink,
            arrived_ms: self.arrived_ms,
            prompt_tokens: self.prompt_tokens,
            received_tokens: self.received_tokens,
            resumed: self.resumed,
        }
    }
}
