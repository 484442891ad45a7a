//! What is known of live requests beside their output, for plugins: the sink they go to, and the attributes that operators set.
//!
//! Owns it from a request's first row to its last. Where attributes come from is not known here.

use crate::ledger::{Ledger, Request};
use crate::route::Route;
use afterbay_events::Name;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::sync::Arc;

/// Says what attributes a rid has now, a JSON object; `None` where it has none. It must not block.
pub type AttributesOf = Box<dyn Fn(&str) -> Option<Arc<str>> + Send>;

/// What is known of a request.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Its reader; `None` where it is not known.
    pub(crate) sink: Option<Name>,
    pub(crate) attributes: Option<Arc<str>>,
}

/// What is known of all live requests, by number.
pub(crate) struct Abouts {
    of: AttributesOf,
    known: HashMap<u64, About, FixedState>,
}

impl Abouts {
    pub(crate) fn new(of: AttributesOf) -> Abouts {
        Abouts { of, known: HashMap::default() }
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
                None => self.meet(rid, request, route),
            }
        }
    }

    /// A request begins, or is there already.
    pub(crate) fn meet(&mut self, rid: &str, request: &Request, route: &Route) {
        let number = request.kept.number().0;
        let sink = route.reader_name(&request.reader).cloned();
        self.known.insert(number, About { sink, attributes: (self.of)(rid) });
    }

    /// A request's reader, by name; empty where it is not known.
    pub(crate) fn sink(&self, number: u64) -> &str {
        self.known.get(&number).and_then(|about| about.sink.as_deref()).unwrap_or_default()
    }

    /// The attributes of a request, where it has any.
    pub(crate) fn attributes(&self, number: u64) -> Option<Arc<str>> {
        self.known.get(&number)?.attributes.clone()
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
