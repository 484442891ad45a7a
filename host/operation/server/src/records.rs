//! The records of requests, from a scheduler's stream to the plugins of the stream of its detokenizer's output.
//!
//! A connector sends records to the scheduler's stream alone. The other stream has the same rids, and asks by rid. A record is taken
//! from here when a plugin asks for it, and put here when it arrives, if a stream is behind.

use crate::mutex::lock;
use afterbay_config as config;
use afterbay_stream::{FindRecord, RecordLinks, StoredRecord};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

/// Most records of a stream. The oldest leave: they take about 200 bytes each, and the journal has the rest.
const RECORDS_MAX: usize = 65_536;

/// The newest records of each stream that has another behind it, by the stream's name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Records(Arc<Mutex<HashMap<String, NewestRecords>>>);

#[derive(Default)]
struct NewestRecords {
    by_rid: HashMap<Arc<str>, Numbered>,
    /// The number and the rid of each record that was added, oldest first.
    order: VecDeque<(u64, Arc<str>)>,
    added: u64,
}

struct Numbered {
    number: u64,
    record: StoredRecord,
}

impl NewestRecords {
    /// Adds a record. It replaces an earlier one of the same rid.
    fn add(&mut self, rid: &str, record: StoredRecord) {
        self.added += 1;
        let (number, rid): (u64, Arc<str>) = (self.added, rid.into());
        self.by_rid.insert(rid.clone(), Numbered { number, record });
        self.order.push_back((number, rid));
        while self.order.len() > RECORDS_MAX {
            let Some((number, rid)) = self.order.pop_front() else { break };
            if self.by_rid.get(&rid).is_some_and(|it| it.number == number) {
                self.by_rid.remove(&rid);
            }
        }
    }
}

impl Records {
    /// Keeps the records of the streams that have another behind them.
    pub(crate) fn follow(&self, config: &config::Config) {
        let before = || config.streams.iter().flat_map(|stream| &stream.after);
        let mut records = lock(&self.0);
        records.retain(|stream, _| before().any(|name| name.as_str() == stream));
        for name in before() {
            records.entry(name.to_string()).or_default();
        }
    }

    /// The links of a stream.
    pub(crate) fn links(&self, stream: &config::Stream) -> RecordLinks {
        let (records, name) = (self.clone(), stream.name.to_string());
        let publish = move |rid: &str, record| {
            if let Some(newest) = lock(&records.0).get_mut(&name) {
                newest.add(rid, record);
            }
        };
        let (records, before) = (self.clone(), stream.after.clone());
        let find = move |rid: &str| {
            let records = lock(&records.0);
            let found = before.iter().find_map(|name| records.get(name.as_str())?.by_rid.get(rid));
            found.map(|it| it.record.clone())
        };
        let find = (!stream.after.is_empty()).then(|| Arc::new(find) as FindRecord);
        RecordLinks { publish: Some(Box::new(publish)), find }
    }
}
