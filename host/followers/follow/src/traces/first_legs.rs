//! First legs of requests that have ended, for the second legs of their requests.

use std::collections::{HashMap, VecDeque};

use crate::traces::identity::Parent;

/// Most rids whose first legs have ended and to which a second leg is still joined.
const FIRST_LEGS_MAX: usize = 65_536;
/// Most first legs with one rid.
const OF_RID_MAX: usize = 4;

/// First legs that have ended, for the second legs of their requests.
#[derive(Default)]
pub(crate) struct FirstLegs {
    /// The newest of a rid last, at most [`OF_RID_MAX`].
    by_rid: HashMap<String, Vec<FirstLeg>>,
    /// The rids, oldest first.
    order: VecDeque<String>,
}

pub(crate) struct FirstLeg {
    pub(crate) stream: String,
    pub(crate) begun_unix_ns: u64,
    /// The parent of its children.
    pub(crate) parent: Parent,
}

impl FirstLegs {
    /// The first legs with this rid.
    pub(crate) fn of_rid(&self, rid: &str) -> impl Iterator<Item = &FirstLeg> {
        self.by_rid.get(rid).into_iter().flatten()
    }

    pub(crate) fn add(&mut self, rid: &str, leg: FirstLeg) {
        let of_rid = self.by_rid.entry(rid.to_owned()).or_default();
        if of_rid.is_empty() {
            self.order.push_back(rid.to_owned());
        }
        of_rid.push(leg);
        if of_rid.len() > OF_RID_MAX {
            of_rid.remove(0);
        }
        if self.order.len() > FIRST_LEGS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_rid.remove(&oldest);
        }
    }
}
