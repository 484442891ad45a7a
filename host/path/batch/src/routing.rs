//! The sinks of a stream by the rows they take: which sink reads a request, and which sink a plugin names.
//!
//! For several readers the table follows the rule of SGLang's MultiDetokenizerRouter, so that Afterbay can replace that router.
//! The table stays the same from the start of a stream to its end.

use afterbay_config::Takes;
use afterbay_events::Name;
use afterbay_wire::{Batch, RequestRecord};

/// The properties of a request that decide which sink reads the request.
#[derive(Debug, Default)]
pub struct ReaderKey {
    /// The [`reader_key`] of the request's first row. `None` for a request of an earlier run, if the first row cannot be read.
    pub key: Option<u32>,
    /// The front end that waits for the request. Empty if rows name none, or if it is not known.
    pub front_end: Box<str>,
}

impl ReaderKey {
    /// Reads the properties from the request's first row.
    pub fn of(batch: &Batch, row: u32) -> ReaderKey {
        let front_end = batch.front_end(row).unwrap_or_default().into();
        ReaderKey { key: Some(reader_key(batch, row)), front_end }
    }

    /// Reads the properties from the request's record.
    pub fn of_record(record: &RequestRecord) -> ReaderKey {
        let front_end = record.front_end.as_deref();
        let key = crc32fast::hash(front_end.unwrap_or(&record.rid).as_bytes());
        ReaderKey { key: Some(key), front_end: front_end.unwrap_or_default().into() }
    }
}

/// The hash by which requests are shared out among readers: of the row's front end, or else of its rid.
pub fn reader_key(batch: &Batch, row: u32) -> u32 {
    let front_end = batch.front_end(row).map(str::as_bytes);
    crc32fast::hash(front_end.or_else(|| batch.rid_of(row)).unwrap_or_default())
}

/// A sink, as rows are routed to it.
pub struct SinkTarget {
    /// The name in the configuration.
    pub name: Name,
    /// The name in the journal, which contains the id of the reader.
    pub journal_name: String,
    /// The rows that the sink takes.
    pub takes: Takes,
    /// For the sink of one front end: the front end's name in rows.
    pub front_end: Option<String>,
}

/// Maps rows to sinks. A sink is given by its index in the order of the configuration.
#[derive(Default)]
pub struct RoutingTable {
    /// All sinks.
    pub sinks: Vec<SinkTarget>,
    /// The sinks that share the requests.
    pub readers: Vec<u32>,
    /// The sinks of single front ends, by their names in rows.
    pub front_ends: Vec<(String, u32)>,
    /// The sink for rows that skip the detokenizer.
    pub skipped: Option<u32>,
    /// The sinks that plugins name.
    routed: Vec<(String, u32)>,
}

impl RoutingTable {
    /// Builds the table of these sinks, given in the order of the configuration.
    pub fn new(sinks: Vec<SinkTarget>) -> RoutingTable {
        let mut table = RoutingTable::default();
        for (index, sink) in (0..).zip(&sinks) {
            match sink.takes {
                Takes::Share => table.readers.push(index),
                Takes::FrontEnd => table.front_ends.extend(sink.front_end.clone().map(|name| (name, index))),
                Takes::Skipped => table.skipped = Some(index),
                Takes::Routed => table.routed.push((sink.name.to_string(), index)),
            }
        }
        table.sinks = sinks;
        table
    }

    /// The reader of a request with this key.
    pub fn reader(&self, key: impl FnOnce() -> u32) -> u32 {
        match self.readers[..] {
            [] => 0,
            [only] => only,
            ref readers => readers[key() as usize % readers.len()],
        }
    }

    /// The reader of a request; `None` if it depends on the request's key and the key is not known.
    pub fn reader_if_known(&self, of: &ReaderKey) -> Option<u32> {
        match (&self.readers[..], of.key) {
            (_, Some(key)) => {
                Some(self.front_end(|| Some(&of.front_end)).unwrap_or_else(|| self.reader(|| key)))
            }
            ([only], None) if self.front_ends.is_empty() => Some(*only),
            (_, None) => None,
        }
    }

    /// The sink of the front end with this name. Does not call `name` if no front end has a sink.
    pub fn front_end<'n>(&self, name: impl FnOnce() -> Option<&'n str>) -> Option<u32> {
        if self.front_ends.is_empty() {
            return None;
        }
        let name = name()?;
        Some(self.front_ends.iter().find(|(known, _)| known == name)?.1)
    }

    /// The sink of kind "routed" with this name.
    pub fn routed(&self, name: &str) -> Option<u32> {
        Some(self.routed.iter().find(|(known, _)| known == name)?.1)
    }

    /// The name of the sink that reads a request; `None` as in [`RoutingTable::reader_if_known`].
    pub fn reader_name(&self, reader: &ReaderKey) -> Option<&Name> {
        let index = self.reader_if_known(reader)?;
        Some(&self.sinks.get(index as usize)?.name)
    }
}
