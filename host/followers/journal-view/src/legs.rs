//! Joins the two legs of a request: its rows on the scheduler's output, and its rows on the detokenizer's output.
//!
//! The journal says which stream is after which ([`StreamReader::after`]). A rid may be used several times: a second leg belongs to the
//! request with this rid that had begun last when the leg began.
//!
//! A copy of several journals has the streams of several instances ([`StreamReader::instance`]). A request that was retried, or went from
//! prefill to decode, has its rid on each of them: [`join_instances`] makes one request of them.

use afterbay_journal::ReadError;
use afterbay_journal::reader::{
    Erasure, RequestFilter, RequestHistory, RequestInfo, RequestState, StreamReader,
};
use std::collections::{HashMap, HashSet};

/// Records of a segment that are read at once.
const RECORDS_AT_ONCE: usize = 2000;

/// A request on one stream.
pub struct Leg<T> {
    /// Name of the stream.
    pub stream: String,
    /// The instance that wrote the stream, in a copy of several journals.
    pub instance: Option<String>,
    /// The request's totals or history there.
    pub of: T,
}

/// The legs of a request, in order, at least one. A second leg is alone if the journal does not have the first.
pub struct Request<T>(pub Vec<Leg<T>>);

/// A value that has the totals of a request.
pub trait Totals {
    /// The totals.
    fn info(&self) -> &RequestInfo;
}

impl Totals for RequestInfo {
    fn info(&self) -> &RequestInfo {
        self
    }
}

impl Totals for RequestHistory {
    fn info(&self) -> &RequestInfo {
        &self.request
    }
}

impl<T: Totals> Request<T> {
    /// The first leg.
    pub fn first(&self) -> &Leg<T> {
        &self.0[0]
    }

    /// The leg after the first, on the same instance.
    pub fn next(&self) -> Option<&Leg<T>> {
        self.0.iter().skip(1).find(|leg| leg.instance == self.first().instance)
    }

    /// The legs on each instance, in order of their first rows.
    pub fn by_instance(&self) -> impl DoubleEndedIterator<Item = &[Leg<T>]> {
        self.0.chunk_by(|one, next| one.instance == next.instance)
    }

    fn infos(&self) -> impl Iterator<Item = &RequestInfo> {
        self.0.iter().map(|leg| leg.of.info())
    }

    /// The state of the whole request, which has ended when every leg has. On several instances, the instance where it began last says
    /// how it ended.
    pub fn state(&self) -> RequestState {
        let last = self.by_instance().next_back().unwrap_or_default();
        let is_live = self.infos().any(|info| info.state == RequestState::Live);
        let is_abandoned = last.iter().any(|leg| leg.of.info().state == RequestState::Abandoned);
        match (is_live, is_abandoned) {
            (true, _) => RequestState::Live,
            (false, true) => RequestState::Abandoned,
            (false, false) => RequestState::Finished,
        }
    }

    /// The last erasure of the request. `None` unless every leg is erased.
    pub fn erased(&self) -> Option<Erasure> {
        let erased: Option<Vec<Erasure>> = self.infos().map(|info| info.erased).collect();
        erased?.into_iter().max_by_key(|erasure| erasure.unix_ns)
    }

    /// The time of the last row on any leg, in Unix nanoseconds.
    pub fn last_unix_ns(&self) -> u64 {
        self.infos().map(|info| info.last_unix_ns).max().unwrap_or_default()
    }

    fn matches(&self, filter: &RequestFilter) -> bool {
        let mut whole = self.first().of.info().clone();
        (whole.state, whole.last_unix_ns) = (self.state(), self.last_unix_ns());
        // A reason on any leg is the request's.
        if let Some(finish) =
            filter.finish.as_ref().filter(|finish| self.infos().any(|it| it.finish == **finish))
        {
            whole.finish.clone_from(finish);
        }
        filter.takes(&whole)
    }
}

/// The requests of each stream: name of the stream, names of the streams it is after, requests.
pub type Known<T> = Vec<(String, Vec<String>, Vec<T>)>;

/// Joins legs to requests. Requests are in the order of their first legs; second legs without a first are last.
pub fn join<T: Totals>(known: Known<T>) -> Vec<Request<T>> {
    let (nexts, firsts): (Known<T>, Known<T>) =
        known.into_iter().partition(|(_, after, _)| !after.is_empty());
    let mut requests: Vec<Request<T>> = Vec::new();
    for (stream, _, found) in firsts {
        requests.extend(
            found.into_iter().map(|of| Request(vec![Leg { stream: stream.clone(), instance: None, of }])),
        );
    }
    let mut by_rid: HashMap<String, Vec<usize>> = HashMap::new();
    if !nexts.is_empty() {
        for (at, request) in requests.iter().enumerate() {
            by_rid.entry(request.first().of.info().rid.clone()).or_default().push(at);
        }
    }
    for (stream, after, found) in nexts {
        for of in found {
            let (rid, begun) = (&of.info().rid, of.info().first_unix_ns);
            let candidates = by_rid.get(rid).into_iter().flatten().copied().filter(|&at| {
                let first = requests[at].first();
                requests[at].next().is_none()
                    && after.contains(&first.stream)
                    && first.of.info().first_unix_ns <= begun
            });
            let belongs = candidates.max_by_key(|&at| requests[at].first().of.info().first_unix_ns);
            let leg = Leg { stream: stream.clone(), instance: None, of };
            match belongs {
                Some(at) => requests[at].0.push(leg),
                None => requests.push(Request(vec![leg])),
            }
        }
    }
    requests
}

/// Joins the requests with one rid on several instances. A request belongs to the one with its rid, of other instances, that had begun
/// last when it began. A rid that is used again on the same instance begins a new request. Without instances, nothing changes.
///
/// # Errors
/// The journal cannot be read.
pub fn join_instances<T: Totals>(
    requests: Vec<Request<T>>,
    streams: &[StreamReader],
) -> Result<Vec<Request<T>>, ReadError> {
    let mut instances = HashMap::new();
    for stream in streams {
        instances.extend(stream.instance()?.map(|instance| (stream.name().to_owned(), instance)));
    }
    Ok(join_across(requests, &instances))
}

fn join_across<T: Totals>(
    mut requests: Vec<Request<T>>,
    instances: &HashMap<String, String>,
) -> Vec<Request<T>> {
    if instances.is_empty() {
        return requests;
    }
    requests.sort_by_key(|request| request.first().of.info().first_unix_ns);
    let mut joined: Vec<Request<T>> = Vec::new();
    // The newest request of a rid.
    let mut newest: HashMap<String, usize> = HashMap::new();
    for mut request in requests {
        for leg in &mut request.0 {
            leg.instance = instances.get(&leg.stream).cloned();
        }
        let rid = &request.first().of.info().rid;
        let is_other =
            |known: &Request<T>| known.0.iter().all(|leg| leg.instance != request.first().instance);
        match newest.get(rid).filter(|&&at| is_other(&joined[at])) {
            Some(&at) => joined[at].0.append(&mut request.0),
            None => {
                newest.insert(rid.clone(), joined.len());
                joined.push(request);
            }
        }
    }
    joined
}

/// The last requests of these streams that match the filter, at most `last`, in the order of their last rows, live ones last and in
/// the order of their first rows. Reads the newest segments of each stream, twice as many each time, until there are enough.
///
/// # Errors
/// A stream cannot be read.
pub fn newest(
    streams: &[StreamReader],
    filter: &RequestFilter,
    last: usize,
) -> Result<Vec<Request<RequestInfo>>, ReadError> {
    let mut segments = 1;
    loop {
        let since = begun_before(streams, segments)?;
        let mut listed = requests(streams, &RequestFilter { ended_since_unix_ns: since, ..filter.clone() })?;
        // Only some of the requests that ended before were read.
        let is_after = |request: &Request<RequestInfo>| Some(request.last_unix_ns()) >= since;
        listed.retain(|request| request.state() == RequestState::Live || is_after(request));
        if since.is_none() || listed.len() >= last {
            listed.drain(..listed.len().saturating_sub(last));
            return Ok(listed);
        }
        segments *= 2;
    }
}

/// The time, unix nanoseconds, since which no stream has more than this many segments. `None` if all segments are to be read.
fn begun_before(streams: &[StreamReader], segments: usize) -> Result<Option<u64>, ReadError> {
    let mut newest = None;
    for stream in streams {
        if stream.instance()?.is_some() {
            // The parts of a request on several instances may be far apart.
            return Ok(None);
        }
        let listed = stream.segments()?;
        if let Some(at) = listed.len().checked_sub(segments).filter(|at| *at > 0) {
            newest = newest.max(stream.begun_unix_ns(listed[at])?);
        }
    }
    Ok(newest)
}

/// The requests of these streams that match the filter, in the order of their last rows, live ones last and in the order of their first
/// rows.
///
/// # Errors
/// A stream cannot be read.
pub fn requests(
    streams: &[StreamReader],
    filter: &RequestFilter,
) -> Result<Vec<Request<RequestInfo>>, ReadError> {
    // State and finish reason are those of the whole request, and a second leg may begin after `until`.
    let first = RequestFilter { state: None, finish: None, ..filter.clone() };
    // The engine says its attributes on the first leg only.
    let next = RequestFilter { until_unix_ns: None, attributes: Vec::new(), ..first.clone() };
    let mut known: Known<RequestInfo> = Vec::new();
    for stream in streams {
        let after = after(stream, streams)?;
        let filter = if after.is_empty() { &first } else { &next };
        let found = stream.requests(filter.clone())?.collect::<Result<_, _>>()?;
        known.push((stream.name().to_owned(), after, found));
    }
    add_ended_before(streams, filter, &mut known)?;
    let mut requests = join_instances(join(known), streams)?;
    requests.retain(|request| request.matches(filter));
    requests.sort_by_cached_key(|request| {
        let is_live = request.state() == RequestState::Live;
        let ended = if is_live { 0 } else { request.last_unix_ns() };
        (is_live, ended, request.first().of.first_unix_ns)
    });
    Ok(requests)
}

/// Adds legs that ended before the time of the filter and whose other leg did not.
fn add_ended_before(
    streams: &[StreamReader],
    filter: &RequestFilter,
    known: &mut Known<RequestInfo>,
) -> Result<(), ReadError> {
    let since = filter.since_unix_ns.max(filter.ended_since_unix_ns);
    if since.is_none() || known.iter().all(|(_, after, _)| after.is_empty()) {
        return Ok(());
    }
    let rids = |is_next: bool| -> HashSet<String> {
        let of = known.iter().filter(|(_, after, _)| after.is_empty() != is_next);
        of.flat_map(|(.., found)| found).map(|info| info.rid.clone()).collect()
    };
    let (firsts, nexts) = (rids(false), rids(true));
    for stream in streams {
        let Some((_, after, found)) = known.iter_mut().find(|(name, ..)| name == stream.name()) else {
            continue;
        };
        let (has, wants) = if after.is_empty() { (&firsts, &nexts) } else { (&nexts, &firsts) };
        let lacks: HashSet<String> = wants.difference(has).cloned().collect();
        if !lacks.is_empty() {
            let filter = RequestFilter { rids: Some(lacks), ..RequestFilter::default() };
            for request in stream.requests(filter)? {
                found.push(request?);
            }
        }
    }
    Ok(())
}

/// The requests with a row that this plugin or operator acted on: stream, and number of the request.
///
/// # Errors
/// The journal cannot be read.
pub fn acted_on_by(streams: &[StreamReader], plugin: &str) -> Result<HashSet<(String, u64)>, ReadError> {
    let mut found = HashSet::new();
    for stream in streams {
        for id in stream.segments()? {
            let Some(mut segment) = stream.segment_requests(id)? else { continue };
            while segment.read(RECORDS_AT_ONCE)? {}
            let acted = segment.changes().filter(|change| change.plugins.contains(plugin));
            found.extend(acted.map(|change| (stream.name().to_owned(), change.request.number.0)));
        }
    }
    Ok(found)
}

/// The names of those of `streams` that a stream is after.
///
/// # Errors
/// The journal cannot be read.
pub fn after(stream: &StreamReader, streams: &[StreamReader]) -> Result<Vec<String>, ReadError> {
    let mut after = stream.after()?;
    after.retain(|name| streams.iter().any(|stream| stream.name() == name));
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests as sample;

    fn info(rid: &str, state: RequestState, first: u64, last: u64) -> RequestInfo {
        RequestInfo { state, last_unix_ns: last, ..sample::request(first, rid) }
    }

    /// Each request as its streams and the beginnings of its legs.
    fn shape(requests: &[Request<RequestInfo>]) -> Vec<String> {
        let leg = |leg: &Leg<RequestInfo>| format!("{}@{}", leg.stream, leg.of.first_unix_ns);
        requests.iter().map(|request| request.0.iter().map(leg).collect::<Vec<_>>().join("+")).collect()
    }

    fn known(firsts: Vec<(&str, Vec<RequestInfo>)>, text: Vec<RequestInfo>) -> Known<RequestInfo> {
        let names: Vec<String> = firsts.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut known: Known<RequestInfo> =
            firsts.into_iter().map(|(name, found)| (name.to_owned(), Vec::new(), found)).collect();
        known.insert(0, ("text".to_owned(), names, text));
        known
    }

    #[test]
    fn a_rid_that_is_used_again_has_its_own_second_leg_each_time() {
        let finished = |first| info("r", RequestState::Finished, first, first + 5);
        let firsts = vec![("a", vec![finished(10), finished(20), finished(30)])];
        // The second leg of the second request was never stored.
        let requests = join(known(firsts, vec![finished(31), finished(11)]));
        assert_eq!(shape(&requests), ["a@10+text@11", "a@20", "a@30+text@31"]);
    }

    #[test]
    fn a_second_leg_joins_a_request_of_any_stream_it_is_after_and_stays_alone_if_none_has_it() {
        let firsts = vec![
            ("a", vec![info("r", RequestState::Live, 1, 9)]),
            ("b", vec![info("s", RequestState::Live, 2, 9)]),
        ];
        let text = vec![
            info("s", RequestState::Live, 3, 9),
            info("gone", RequestState::Live, 4, 9),
            info("r", RequestState::Live, 0, 9),
        ];
        // The last leg began before request r, so it belongs to another request.
        assert_eq!(shape(&join(known(firsts, text))), ["a@1", "b@2+text@3", "text@4", "text@0"]);
    }

    #[test]
    fn a_rid_on_several_instances_is_one_request_and_a_rid_that_is_used_again_on_one_is_another() {
        let finished = |first| info("r", RequestState::Finished, first, first + 5);
        let abandoned = |first| info("r", RequestState::Abandoned, first, first + 5);
        let known: Known<RequestInfo> = vec![
            ("a.decode".into(), Vec::new(), vec![abandoned(10), finished(40)]),
            ("a.text".into(), vec!["a.decode".into()], vec![abandoned(11)]),
            ("b.decode".into(), Vec::new(), vec![finished(20), info("s", RequestState::Live, 21, 30)]),
        ];
        let instances: HashMap<String, String> =
            ["a.decode", "a.text", "b.decode"].map(|name| (name.to_owned(), name[..1].to_owned())).into();
        let requests = join_across(join(known), &instances);
        assert_eq!(shape(&requests), ["a.decode@10+a.text@11+b.decode@20", "b.decode@21", "a.decode@40"]);
        let retried = &requests[0];
        // The retry says how the request ended, and the leg after the first is on the same instance.
        assert_eq!(retried.state(), RequestState::Finished);
        assert_eq!(retried.next().map(|leg| &*leg.stream), Some("a.text"));
        assert_eq!(requests[1].next().map(|leg| &*leg.stream), None);
    }

    #[test]
    fn a_request_has_ended_when_every_leg_has() {
        let legs = |first, next| {
            join(known(vec![("a", vec![info("r", first, 1, 5)])], vec![info("r", next, 2, 7)])).remove(0)
        };
        assert_eq!(legs(RequestState::Finished, RequestState::Live).state(), RequestState::Live);
        assert_eq!(legs(RequestState::Finished, RequestState::Abandoned).state(), RequestState::Abandoned);
        assert_eq!(legs(RequestState::Finished, RequestState::Finished).state(), RequestState::Finished);
        assert_eq!(legs(RequestState::Finished, RequestState::Finished).last_unix_ns(), 7);
    }
}
