//! What is known of live requests beside their output, for plugins: whom it is for, and the attributes that operators set.
//!
//! Owns it from a request's first row to its last. Where attributes come from is not known here.

use crate::ledger::Ledger;
use crate::route::Route;
use std::collections::HashMap;
use std::sync::Arc;

/// Says what attributes a rid has now, a JSON object; `None` where it has none. It must not block.
pub type AttributesOf = Box<dyn Fn(&str) -> Option<Arc<str>> + Send>;

/// What is known of a request.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Its `http_worker_ipc`; empty where there is none, and for a request of an earlier run.
    pub(crate) worker: Box<str>,
    /// Its reader; empty where it is not known.
    pub(crate) sink: Box<str>,
    pub(crate) attributes: Option<Arc<str>>,
}

/// What is known of all live requests, by number.
pub(crate) struct Abouts {
    of: AttributesOf,
    known: HashMap<u64, About>,
}

impl Abouts {
    pub(crate) fn new(of: AttributesOf) -> Abouts {
        Abouts { of, known: HashMap::new() }
    }

    /// Of the requests that an earlier run has left.
    pub(crate) fn of_live(of: AttributesOf, ledger: &Ledger, route: &Route) -> Abouts {
        let mut abouts = Abouts::new(of);
        abouts.meet_live(ledger, route);
        abouts
    }

    /// Another says so of requests from now on. Those that began while no plugin was there are met.
    pub(crate) fn set_of(&mut self, of: AttributesOf, ledger: &Ledger, route: &Route) {
        self.of = of;
        self.meet_live(ledger, route);
    }

    /// Those of the requests that live of which nothing is known.
    fn meet_live(&mut self, ledger: &Ledger, route: &Route) {
        let mut before = std::mem::take(&mut self.known);
        for (rid, request) in ledger.requests().filter(|(_, request)| !request.is_unseen()) {
            let number = request.kept.number().0;
            match before.remove(&number) {
                Some(about) => _ = self.known.insert(number, about),
                None => {
                    self.meet(number, rid, "", route.reader_by_key(number, request.key).unwrap_or_default())
                }
            }
        }
    }

    /// A request begins, or is there already.
    pub(crate) fn meet(&mut self, number: u64, rid: &str, worker: &str, sink: &str) {
        let about = About { worker: worker.into(), sink: sink.into(), attributes: (self.of)(rid) };
        self.known.insert(number, about);
    }

    pub(crate) fn get(&self, number: u64) -> Option<&About> {
        self.known.get(&number)
    }

    /// The attributes of a request, where it has any.
    pub(crate) fn attributes(&self, number: u64) -> Option<Arc<str>> {
        self.get(number)?.attributes.clone()
    }

    /// The attributes are asked for anew. False: no plugin knows of the request.
    pub(crate) fn refresh(&mut self, number: u64, rid: &str) -> bool {
        let about = self.known.get_mut(&number);
        about.map(|about| about.attributes = (self.of)(rid)).is_some()
    }

    pub(crate) fn forget(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| drop(self.known.remove(number)));
    }
}
