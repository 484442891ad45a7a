//! What is known of live requests beside their output, for plugins: whom it is for, and the attributes that operators set.
//!
//! Owns it from a request's first row to its last. Where attributes come from is not known here.

use crate::ledger::Ledger;
use std::collections::HashMap;
use std::sync::Arc;

/// Says what attributes a rid has now, a JSON object; `None` where it has none. It must not block.
pub type AttributesOf = Box<dyn Fn(&str) -> Option<Arc<str>> + Send>;

/// What is known of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    /// Its `http_worker_ipc`; empty where there is none, and for a request of an earlier run.
    pub(crate) worker: Box<str>,
    pub(crate) attributes: Option<Arc<str>>,
}

/// What is known of all live requests, by number.
pub(crate) struct Abouts {
    of: AttributesOf,
    /// Those of which anything is known.
    known: HashMap<u64, About>,
}

impl Abouts {
    pub(crate) fn new(of: AttributesOf) -> Abouts {
        Abouts { of, known: HashMap::new() }
    }

    /// Of the requests that an earlier run has left.
    pub(crate) fn of_live(of: AttributesOf, ledger: &Ledger) -> Abouts {
        let mut abouts = Abouts::new(of);
        for (rid, request) in ledger.requests() {
            abouts.meet(request.kept.number().0, rid, "");
        }
        abouts
    }

    /// Another says so of requests from now on.
    pub(crate) fn set_of(&mut self, of: AttributesOf) {
        self.of = of;
    }

    /// A request begins, or is there already.
    pub(crate) fn meet(&mut self, number: u64, rid: &str, worker: &str) {
        let about = About { worker: worker.into(), attributes: (self.of)(rid) };
        if about != About::default() {
            self.known.insert(number, about);
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<&About> {
        self.known.get(&number)
    }

    /// The attributes of a request, where it has any.
    pub(crate) fn attributes(&self, number: u64) -> Option<Arc<str>> {
        self.get(number)?.attributes.clone()
    }

    /// The attributes are asked for anew.
    pub(crate) fn refresh(&mut self, number: u64, rid: &str) {
        self.known.entry(number).or_default().attributes = (self.of)(rid);
    }

    pub(crate) fn forget(&mut self, numbers: &[u64]) {
        if !self.known.is_empty() {
            numbers.iter().for_each(|number| drop(self.known.remove(number)));
        }
    }
}
