//! The live requests, as `open` reports them to a fresh instance of a plugin.

use crate::attributes::RequestAttributes;
use afterbay_batch::{Accounted, Row};
use afterbay_ledger::{Ledger, Request};
use afterbay_runtime::{Fault, Opened, Plugin};
use std::collections::HashMap;

/// The live requests as the ledger has them, the batch in hand included.
pub fn now(ledger: &Ledger) -> Vec<Opened<'_>> {
    alive(ledger).map(|(rid, request)| resumed(rid, request, ledger)).collect()
}

/// The live requests as they were before the batch in hand, which the instance is called with again.
pub fn before<'l>(accounted: &Accounted, ledger: &'l Ledger) -> Vec<Opened<'l>> {
    let in_hand: HashMap<u64, &Row> = accounted.rows().iter().map(|row| (row.number, row)).collect();
    let resumed = alive(ledger).filter_map(|(rid, request)| {
        let opened = resumed(rid, request, ledger);
        match in_hand.get(&opened.request) {
            Some(row) if row.first => None,
            Some(row) => {
                let received_tokens = opened.received_tokens.saturating_sub(u64::from(row.tokens));
                Some(Opened { received_tokens, ..opened })
            }
            None => Some(opened),
        }
    });
    resumed.collect()
}

/// The requests that plugins may see rows of.
fn alive(ledger: &Ledger) -> impl Iterator<Item = (&str, &Request)> {
    ledger.requests().filter(|(_, request)| !request.is_hidden())
}

fn resumed<'l>(rid: &'l str, request: &'l Request, ledger: &'l Ledger) -> Opened<'l> {
    Opened { received_tokens: request.received, resumed: true, ..begun(rid, request, ledger) }
}

/// A request that begins.
pub fn begun<'l>(rid: &'l str, request: &'l Request, ledger: &'l Ledger) -> Opened<'l> {
    Opened {
        request: request.handle.number().0,
        rid,
        http_worker_ipc: &request.reader.worker,
        sink: ledger.sink_name(request).map_or("", |name| name),
        prompt_tokens: request.prompt_tokens,
        received_tokens: 0,
        resumed: false,
    }
}

/// Tells an instance of requests, whose attributes it may ask for then.
pub fn open(
    plugin: &mut Plugin,
    requests: &[Opened<'_>],
    attributes: &RequestAttributes,
) -> Result<(), Fault> {
    if plugin.component().grants().request {
        for opened in requests {
            plugin.set_attributes(opened.request, attributes.attributes(opened.request));
        }
    }
    plugin.open(requests)
}
