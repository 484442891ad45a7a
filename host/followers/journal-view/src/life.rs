//! The life of one request as JSON, for the admin address: its legs with their rows, a timeline, and its neighbours. Every part
//! is bounded.

use crate::content::{ContentBounds, ContentReader};
use crate::ending::{DETOKENIZER, LegEnd, SCHEDULER, TokenizerHint};
use crate::json;
use crate::leg_view::LegView;
use crate::legs::{self, Known, Request};
use crate::neighbours::{SharedFrames, Sums};
use crate::request_end::RequestEnd;
use afterbay_journal::ReadError;
use afterbay_journal::reader::{RequestHistory, StreamReader};
use afterbay_text::TokenBytes;
use afterbay_wire::Layouts;
use serde_json::{Value, json};

/// Most rows of a leg.
pub const ROWS_MAX: usize = 10_000;
/// Bytes of ids and texts of a leg after which rows have no content.
pub const CONTENT_BYTES_MAX: usize = 4 << 20;
/// Most ids of a leg's prompt.
pub const PROMPT_IDS_MAX: usize = 32_768;
/// Most stages of the timeline of a leg.
pub const STAGES_MAX: usize = 10_000;
/// Most frames that are read for the neighbours.
pub const SHARED_FRAMES_MAX: u64 = 1000;
/// Most neighbours.
pub const NEIGHBOURS_MAX: usize = 100;
/// Most earlier requests with the same rid.
pub const EARLIER_MAX: usize = 100;

/// The parts of a stream's configuration that its rows are read with.
pub trait Streams {
    /// The layouts of a stream's msgpack frames.
    fn layouts(&self, stream: &str) -> Layouts;
    /// The tokens of a stream's model, if they are known.
    fn tokens(&self, stream: &str) -> Option<TokenBytes>;
}

/// The newest request with this stored rid ([`afterbay_journal::stored_rid`]). `None` if the journal has none.
///
/// # Errors
/// The journal cannot be read.
pub fn of_rid(streams: &[StreamReader], rid: &str, known: &dyn Streams) -> Result<Option<Value>, ReadError> {
    let mut lives: Known<RequestHistory> = Vec::new();
    for stream in streams {
        let after = legs::after(stream, streams)?;
        lives.push((stream.name().to_owned(), after, stream.lives(rid)?));
    }
    let seconds: Vec<String> =
        lives.iter().filter(|(_, after, _)| !after.is_empty()).map(|(name, ..)| name.clone()).collect();
    let mut requests = legs::join(lives);
    requests.sort_by_key(|request| std::cmp::Reverse(request.first().of.request.first_unix_ns));
    let Some((newest, earlier)) = requests.split_first() else { return Ok(None) };
    let mut whole = json::whole(newest);
    let (mut views, mut timeline, mut is_truncated) = (Vec::new(), Vec::new(), false);
    for leg in &newest.0 {
        let Some(stream) = streams.iter().find(|stream| stream.name() == leg.stream) else { continue };
        let layouts = known.layouts(&leg.stream);
        let reader = ContentReader::new(stream, &layouts);
        let sender = if seconds.contains(&leg.stream) { DETOKENIZER } else { SCHEDULER };
        let bounds = ContentBounds { rows: ROWS_MAX, bytes: CONTENT_BYTES_MAX };
        let view = LegView::read(&reader, (&leg.stream, &leg.of), sender, known.tokens(&leg.stream), bounds);
        is_truncated |= view.is_truncated(ROWS_MAX);
        timeline.extend(view.timeline(STAGES_MAX));
        views.push(view);
    }
    let shown = views.iter().map(|view| {
        let mut of_leg = json::totals(view.stream, &view.life.request);
        of_leg["record"] = view.record_json(PROMPT_IDS_MAX);
        of_leg["rows_seen"] = view.rows(ROWS_MAX).into();
        of_leg
    });
    whole["legs"] = shown.collect();
    let ends: Vec<&LegEnd<'_>> = views.iter().map(|view| &view.end).collect();
    whole["ended"] = RequestEnd::of(&ends).map(|end| end.json(TokenizerHint::Key)).into();
    whole["timeline"] = timeline.into();
    whole["truncated"] = is_truncated.into();
    whole["neighbours"] = neighbours(streams, newest)?.into();
    whole["earlier"] = earlier.iter().take(EARLIER_MAX).map(json::whole).collect();
    Ok(Some(whole))
}

/// The requests that shared most of the first frames of the first leg.
fn neighbours(streams: &[StreamReader], request: &Request<RequestHistory>) -> Result<Vec<Value>, ReadError> {
    let first = request.first();
    let Some(stream) = streams.iter().find(|stream| stream.name() == first.stream) else {
        return Ok(Vec::new());
    };
    let mut frames = SharedFrames::of(stream, &first.of.request)?;
    let mut sums = Sums::default();
    while sums.frames < SHARED_FRAMES_MAX
        && let Some(shared) = frames.next()?
    {
        sums.add(&shared, |request| frames.rid(request));
    }
    let most = sums.neighbours().into_iter().take(NEIGHBOURS_MAX);
    Ok(most
        .map(|(request, rid, batches)| json!({"rid": rid, "request": request, "batches": batches}))
        .collect())
}
