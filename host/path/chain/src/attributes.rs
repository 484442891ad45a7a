//! The attributes that operators set on requests, from a request's first row to its last.

use afterbay_batch::ledger::{Ledger, Request};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::sync::Arc;

/// Returns the attributes of a rid, a JSON object, or `None` if it has none. The call must not block.
pub type AttributesOf = Box<dyn Fn(&str) -> Option<Arc<str>> + Send>;

/// The attributes of the live requests, by number.
pub struct RequestAttributes {
    source: AttributesOf,
    by_number: HashMap<u64, Option<Arc<str>>, FixedState>,
}

impl RequestAttributes {
    /// The attributes of the live requests that an earlier run has left.
    pub fn new(source: AttributesOf, ledger: &Ledger) -> RequestAttributes {
        let mut attributes = RequestAttributes { source, by_number: HashMap::default() };
        attributes.retain_live(ledger);
        attributes
    }

    /// Replaces the source for later requests, and for requests that began while the stream had no plugin.
    pub fn set_source(&mut self, source: AttributesOf, ledger: &Ledger) {
        self.source = source;
        self.retain_live(ledger);
    }

    /// Adds the live requests that are missing, and removes the requests that have ended.
    pub fn retain_live(&mut self, ledger: &Ledger) {
        let mut before = std::mem::take(&mut self.by_number);
        for (rid, request) in ledger.requests().filter(|(_, request)| !request.is_hidden()) {
            let number = request.handle.number().0;
            match before.remove(&number) {
                Some(attributes) => _ = self.by_number.insert(number, attributes),
                None => self.add(rid, request),
            }
        }
    }

    /// Adds a request that begins.
    pub fn add(&mut self, rid: &str, request: &Request) {
        let number = request.handle.number().0;
        self.by_number.insert(number, (self.source)(rid));
    }

    /// The attributes of a request, if it has any.
    pub fn of(&self, number: u64) -> Option<Arc<str>> {
        self.by_number.get(&number)?.clone()
    }

    /// Reads the attributes of a request again. False if no plugin knows the request.
    pub fn refresh(&mut self, number: u64, rid: &str) -> bool {
        let known = self.by_number.get_mut(&number);
        known.map(|attributes| *attributes = (self.source)(rid)).is_some()
    }

    pub fn remove(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| drop(self.by_number.remove(number)));
    }
}
