//! What is known of live requests beside their output, for plugins: the sink they go to, and the attributes that operators set.
//!
//! Owns it from a request's first row to its last. Where attributes come from is not known here.

use afterbay_ledger::{Ledger, Request};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::sync::Arc;

/// Says what attributes a rid has now, a JSON object; `None` where it has none. It must not block.
pub type AttributesOf = Box<dyn Fn(&str) -> Option<Arc<str>> + Send>;

/// What is known of all live requests, by number.
pub struct RequestAttributes {
    of: AttributesOf,
    known: HashMap<u64, Option<Arc<str>>, FixedState>,
}

impl RequestAttributes {
    pub fn new(of: AttributesOf) -> RequestAttributes {
        RequestAttributes { of, known: HashMap::default() }
    }

    /// Of the requests that an earlier run has left.
    pub fn of_live(of: AttributesOf, ledger: &Ledger) -> RequestAttributes {
        let mut attributes = RequestAttributes::new(of);
        attributes.meet_live(ledger);
        attributes
    }

    /// Another says so of requests from now on. Those that began while no plugin was there are met.
    pub fn set_of(&mut self, of: AttributesOf, ledger: &Ledger) {
        self.of = of;
        self.meet_live(ledger);
    }

    /// Those of the requests that live of which nothing is known.
    fn meet_live(&mut self, ledger: &Ledger) {
        let mut before = std::mem::take(&mut self.known);
        for (rid, request) in ledger.requests().filter(|(_, request)| !request.is_hidden()) {
            let number = request.handle.number().0;
            match before.remove(&number) {
                Some(about) => _ = self.known.insert(number, about),
                None => self.meet(rid, request),
            }
        }
    }

    /// A request begins, or is there already.
    pub fn meet(&mut self, rid: &str, request: &Request) {
        let number = request.handle.number().0;
        self.known.insert(number, (self.of)(rid));
    }

    /// The attributes of a request, where it has any.
    pub fn attributes(&self, number: u64) -> Option<Arc<str>> {
        self.known.get(&number)?.clone()
    }

    /// The attributes are asked for anew. False: no plugin knows of the request.
    pub fn refresh(&mut self, number: u64, rid: &str) -> bool {
        let known = self.known.get_mut(&number);
        known.map(|attributes| *attributes = (self.of)(rid)).is_some()
    }

    pub fn forget(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| drop(self.known.remove(number)));
    }
}
