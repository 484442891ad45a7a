//! The attributes of live requests: those of the engine, of the configuration's rules, and those that operators set.

use super::Ledger;
use crate::records::Records;
use afterbay_journal::JournalRequest;
use afterbay_journal::reader::RequestInfo;
use afterbay_wire::RequestRecord;
use std::sync::Arc;

/// Returns the attributes of a rid, of which the engine says these: a JSON object, or `None` if it has none. The call must not block.
pub type AttributesOf = Box<dyn Fn(&str, &[(String, String)]) -> Option<Arc<str>> + Send>;

/// The attributes that the engine gave a request of an earlier run.
pub(super) fn of_engine(info: &RequestInfo) -> Vec<(String, String)> {
    let is_of_engine = |(name, _): &&(String, String)| RequestRecord::ATTRIBUTES.contains(&&**name);
    info.attributes.iter().filter(is_of_engine).cloned().collect()
}

impl Ledger {
    /// Sets the source of attributes for requests that begin from now on. `None`: no plugin reads attributes. The first source is
    /// also asked for the live requests, which began while none was asked.
    pub fn set_attributes_source(&mut self, source: Option<AttributesOf>) {
        let before = std::mem::replace(&mut self.links.attributes, source);
        if before.is_none() {
            self.add_attributes();
        }
    }

    /// Asks the source for each live request without attributes.
    pub(super) fn add_attributes(&mut self) {
        let live: Vec<JournalRequest> = self.requests.iter().map(|(handle, ..)| handle).collect();
        for handle in live {
            if self.requests.get(handle).is_some_and(|request| request.attributes.is_none()) {
                self.refresh_attributes(handle);
            }
        }
    }

    /// Asks the source again for the attributes of a live request.
    pub fn refresh_attributes(&mut self, handle: JournalRequest) {
        let Some((rid, request)) = self.request(handle) else { return };
        let attributes = self.links.attributes.as_ref().and_then(|of| of(rid, &request.of_engine));
        if let Some(request) = self.requests.get_mut(handle) {
            request.attributes = attributes;
        }
    }

    /// Records the attributes of a live request, which have changed.
    pub fn record_attributes(&self, handle: JournalRequest, records: &mut Records) {
        if let Some((rid, request)) = self.request(handle) {
            records.refresh_request(handle, rid, &request.of_engine);
        }
    }

    /// The attributes of the live request with this number, if it has any.
    pub fn attributes(&self, number: u64) -> Option<Arc<str>> {
        self.requests.get(self.numbered(number)?)?.attributes.clone()
    }
}
