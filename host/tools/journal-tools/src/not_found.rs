//! The answers for a rid that no stored request has. "Not in the journal", "not stored" and "cannot be read" are three answers.

use crate::place::Selected;
use afterbay_config::Config;
use afterbay_journal::reader::{RequestFilter, RequestInfo, StreamCoverage, StreamReader};
use afterbay_journal_view::legs::{self, Request};
use afterbay_journal_view::local_time;
use afterbay_journal_view::wording::counted;
use afterbay_terminal::bytes;

/// The newest requests of a stream whose rids are compared with one that is not found.
const NEAREST_OF: usize = 10_000;
/// The most problems that the error names.
const PROBLEMS_NAMED: usize = 3;

impl Selected {
    /// The streams with a request that has this rid, or whose rid is the only one that begins with it, each with the whole rid.
    ///
    /// # Errors
    /// No stream has such a request.
    pub(crate) fn with_rid(&self, rid: &str) -> anyhow::Result<Vec<(&StreamReader, String)>> {
        let mut found = Vec::new();
        for stream in &self.streams {
            found.extend(stream.whole_rid(rid)?.map(|whole| (stream, whole)));
        }
        if found.is_empty() { Err(not_found(self, rid)) } else { Ok(found) }
    }
}

/// The error for a rid that no request has or begins with.
pub(crate) fn not_found(selected: &Selected, rid: &str) -> anyhow::Error {
    let streams: Vec<(&StreamReader, Option<StreamCoverage>)> =
        selected.streams.iter().map(|stream| (stream, stream.coverage().ok())).collect();
    let covered = || streams.iter().filter_map(|(stream, it)| Some((stream.name(), it.as_ref()?)));
    let damaged =
        covered().any(|(_, it)| !it.damage.is_empty()) || streams.iter().any(|(_, it)| it.is_none());
    let not_stored: u64 = covered().map(|(_, it)| it.not_stored.len()).sum();
    let answer = match (damaged, not_stored) {
        (true, _) => "not in the part of the journal that can be read",
        (false, 0) => "not in the journal",
        (false, _) => "not in the frames that were stored",
    };
    let mut lines = vec![format!("rid {rid:?}: {answer}{}", nearest(selected, rid))];
    lines.push(format!("{}: {}", selected.source.name(), reach(&streams, selected.config.as_ref())));
    for (stream, coverage) in covered() {
        if !coverage.not_stored.is_empty() {
            lines.push(format!(
                "stream {stream:?}: not stored: {} from frame {} on, which were forwarded (on_error = \"forward\"); the request may \
                 be there",
                counted(coverage.not_stored.len(), "frame"),
                coverage.not_stored.first().unwrap_or_default(),
            ));
        }
        let problems = coverage.damage.iter().take(PROBLEMS_NAMED);
        lines.extend(problems.map(|problem| format!("stream {stream:?}: {problem}")));
    }
    if damaged {
        lines.push(
            "`afterbay journal verify` lists all damage; the request may be in the damaged part".to_owned(),
        );
    }
    anyhow::anyhow!("{}", lines.join("\n  "))
}

fn nearest(selected: &Selected, rid: &str) -> String {
    // Streams that cannot be read are left out.
    let newest =
        |stream| legs::newest(std::slice::from_ref(stream), &RequestFilter::default(), NEAREST_OF).ok();
    let known: Vec<Request<RequestInfo>> = selected.streams.iter().filter_map(newest).flatten().collect();
    let rids = known.iter().map(|request| &*request.first().of.rid);
    let nearest = afterbay_config::nearest_of(rid, rids);
    nearest.map_or_else(String::new, |nearest| format!(", did you mean {nearest:?}?"))
}

/// How far back the journal reaches, and what removes older requests.
fn reach(streams: &[(&StreamReader, Option<StreamCoverage>)], config: Option<&Config>) -> String {
    let begun = streams.iter().filter_map(|(stream, coverage)| {
        let coverage = coverage.as_ref().filter(|it| it.begun_unix_ns > 0)?;
        let since = local_time(coverage.begun_unix_ns);
        let removed =
            if coverage.first_frame.0 > 1 { "frames before were removed" } else { "no frame was removed" };
        Some(format!("stream {:?} reaches back to {since} ({removed})", stream.name()))
    });
    let begun: Vec<String> = begun.collect();
    let begun = if begun.is_empty() { "it has no frame yet".to_owned() } else { begun.join(", ") };
    let Some(retain) = config.map(|config| &config.journal.retain) else { return begun };
    let limits = [
        retain.bytes.map(|limit| format!("bytes = {}", bytes(limit))),
        retain.age.map(|age| format!("age = {} s", age.as_secs())),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    if limits.is_empty() {
        return format!("{begun}; retention is off");
    }
    format!("{begun}; retain: {}", limits.join(", "))
}
