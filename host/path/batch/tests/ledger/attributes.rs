//! The moments at which the source of attributes is asked for a request.

use crate::stream::{Stream, row};
use afterbay_batch::ledger::AttributesOf;

/// A source that knows every rid that begins with this text.
fn source(knows: &'static str) -> Option<AttributesOf> {
    Some(Box::new(move |rid, _| rid.starts_with(knows).then(|| format!("{{\"of\": \"{rid}\"}}").into())))
}

/// The attributes of the live requests, in order of number.
fn attributes(stream: &mut Stream) -> Vec<Option<String>> {
    let ledger = stream.ledger();
    let numbers: Vec<u64> = ledger.requests().map(|(_, request)| request.handle.number().0).collect();
    numbers.into_iter().map(|number| ledger.attributes(number).map(|it| it.to_string())).collect()
}

#[test]
fn a_source_is_asked_when_a_request_begins_and_the_first_one_for_live_requests_too() {
    let of = |rid: &str| Some(format!("{{\"of\": \"{rid}\"}}"));
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1)]);
    assert_eq!(attributes(&mut stream), [None]);
    stream.ledger().set_attributes_source(source("a"));
    stream.pass(vec![row("a", &[2], 2), row("b", &[1], 1)]);
    assert_eq!(attributes(&mut stream), [of("a"), None]);
    // Another source is for requests that begin from now on: a reload changes no request that is live.
    stream.ledger().set_attributes_source(source("b"));
    stream.pass(vec![row("b2", &[1], 1)]);
    assert_eq!(attributes(&mut stream), [of("a"), None, of("b2")]);
    let b = stream.ledger().numbered(2).unwrap();
    stream.ledger().refresh_attributes(b);
    assert_eq!(attributes(&mut stream), [of("a"), of("b"), of("b2")]);
    // A ledger that is built again from the journal asks for all.
    stream.restart(true);
    assert_eq!(attributes(&mut stream), [None, of("b"), of("b2")]);
}
