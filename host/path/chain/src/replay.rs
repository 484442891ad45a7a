//! Replay: an instance is shown the rows of the live requests again, from the journal.
//!
//! The rows are shown as the plugins before left them, from the verdicts that the journal has recorded.

use crate::hand_over::{ChainState, HandedCall};
use crate::open_requests::OpenedRequest;
use crate::row_facts::{row_counts, row_facts};
use afterbay_events::Name;
use afterbay_journal::{
    BacklogItem, BacklogReader, FrameNo, Outcome, PluginAction, StoredReplacement, Verdict, is_release_marker,
};
use afterbay_runtime::{
    Answer, CallError, ColumnSet, Fault, FinishKind, OwnedColumns, PlainValues, Plugin, RowFacts, SentCall,
    TokenId,
};
use afterbay_wire as wire;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The longest time of a replay. After it, the instance starts as after a fault.
pub const REPLAY_TIME_MAX: Duration = Duration::from_secs(30);

/// The part of the journal that has the rows of the live requests.
pub struct JournalSource {
    /// The longest time of the replay.
    pub time_max: Duration,
    /// A reader that returns frames with their outcomes, from the first frame with a row of a live request.
    pub backlog: BacklogReader,
    /// The last frame that the plugins have seen.
    pub through: FrameNo,
    /// The layouts of the frames.
    pub layouts: wire::Layouts,
}

/// The state of the plugins of the process before, and the journal for those that have to be shown rows again.
pub struct TakenOver<'a> {
    /// The plugins of the process before.
    pub state: ChainState,
    /// Opens the journal at the first row of a live request. `None` if the journal cannot be read.
    pub journal: &'a mut dyn FnMut() -> Option<JournalSource>,
}

/// The reason why an instance does not know the live requests. The text is a sentence for the operator.
#[derive(Debug)]
pub(crate) enum CatchUpError {
    /// The instance faulted on a row, so it would fault on live rows, too.
    Fault(String),
    /// The instance cannot use the state, or the journal cannot show the rows.
    Unshown(String),
}

impl CatchUpError {
    pub(crate) fn into_text(self) -> String {
        let (CatchUpError::Fault(text) | CatchUpError::Unshown(text)) = self;
        text
    }
}

impl From<Fault> for CatchUpError {
    fn from(fault: Fault) -> CatchUpError {
        CatchUpError::Fault(fault.to_string())
    }
}

impl From<String> for CatchUpError {
    fn from(text: String) -> CatchUpError {
        CatchUpError::Unshown(text)
    }
}

/// Opens requests in an instance and shows it their rows. Returns the number of rows.
pub(crate) fn replay(
    instance: &mut Plugin,
    requests: &[OpenedRequest],
    plugins_before: &HashSet<String>,
    journal: JournalSource,
    mut earlier: Option<&mut EarlierInstance>,
) -> Result<u64, CatchUpError> {
    let started = Instant::now();
    let JournalSource { time_max, mut backlog, through, layouts } = journal;
    OpenedRequest::open(requests, instance)?;
    let live: HashSet<u64> = requests.iter().map(|request| request.request).collect();
    let mut state = ReplayState { wants: instance.wants(), ..ReplayState::default() };
    let mut decoder = wire::Decoder::new(layouts);
    let mut shown = 0;
    while !live.is_empty() && backlog.position() <= through {
        if started.elapsed() > time_max {
            return Err(format!("the journal was not read in {} s", time_max.as_secs()).into());
        }
        let frame = match backlog.next().map_err(|error| error.to_string())? {
            None => break,
            Some(BacklogItem::Skipped(..)) => {
                return Err("the journal lacks frames that were forwarded".to_owned().into());
            }
            Some(BacklogItem::Frame(frame)) => frame,
        };
        let Some(outcome) = frame.outcome else { continue };
        let batch = match is_release_marker(&frame.bytes) {
            true => None,
            false => match decoder.decode(frame.bytes) {
                wire::DecodedFrame::Batch(batch) => Some(batch),
                wire::DecodedFrame::Barrier(_) => continue,
            },
        };
        let holder = earlier.as_deref().map(|earlier| &earlier.plugin[..]);
        let rows = rows_before(&outcome, batch.as_ref(), &live, plugins_before, holder, &mut state);
        if rows.rows() > 0 {
            shown += rows.rows() as u64;
            rows.show(|columns| instance.process(columns))?;
            cancel_calls(instance, earlier.as_deref_mut())?;
        }
    }
    Ok(shown)
}

/// The instance of another process that an instance continues: its held rows stay held, and its open calls stay open.
pub(crate) struct EarlierInstance {
    pub(crate) plugin: Name,
    /// The calls whose answers it did not have, and that the replayed instance has not made yet.
    pub(crate) open_calls: Vec<HandedCall>,
    /// Those that the replayed instance has made, with its own numbers.
    pub(crate) found: Vec<HandedCall>,
}

impl EarlierInstance {
    /// Whether this call is one of the open ones. It then stays open.
    fn finds(&mut self, sent: &SentCall) -> bool {
        let is_it = |open: &HandedCall| {
            let body = open.body.as_ref().map(|body| &body.0);
            open.request == sent.request && open.endpoint == sent.endpoint && body == sent.body.as_ref().ok()
        };
        let Some(at) = self.open_calls.iter().position(is_it) else { return false };
        self.found.push(HandedCall { call: sent.call, ..self.open_calls.remove(at) });
        true
    }
}

/// Tells an instance that the calls which it made during a replay are cancelled, but for those that are open. Calls that the
/// instance makes meanwhile are cancelled the next time.
pub(crate) fn cancel_calls(
    instance: &mut Plugin,
    mut earlier: Option<&mut EarlierInstance>,
) -> Result<(), Fault> {
    if !instance.has_calls() {
        return Ok(());
    }
    let mut calls = instance.drain_calls();
    calls.retain(|sent| !earlier.as_mut().is_some_and(|earlier| earlier.finds(sent)));
    if calls.is_empty() {
        return Ok(());
    }
    let cancelled = |sent: &SentCall| Answer {
        call: sent.call,
        request: sent.request,
        outcome: Err(CallError::Cancelled),
    };
    let answers: Vec<Answer<'_>> = calls.iter().map(cancelled).collect();
    // As for rows that are shown again, verdicts are ignored.
    instance.answered(&answers).map(drop)
}

/// The contents of a row, as the plugins before left them.
#[derive(Clone, Default)]
struct Contents {
    ids: Vec<TokenId>,
    text: Option<String>,
    /// The counts of the request so far.
    counts: PlainValues,
    facts: RowFacts,
    /// How many received rows these are.
    rows: u32,
}

/// State that earlier rows left for later ones.
#[derive(Default)]
struct ReplayState {
    /// The columns that the plugin asks for.
    wants: ColumnSet,
    /// The rows of each request that each plugin before holds.
    held: HashMap<(u64, String), Vec<Contents>>,
    /// The tokens of each request whose rows have no count of the scheduler.
    counts: HashMap<u64, u64>,
}

impl ReplayState {
    /// The request's tokens so far, including this row.
    fn count(&mut self, request: u64, batch: &wire::Batch, row: u32) -> u64 {
        batch.completion_tokens(row).unwrap_or_else(|| {
            let count = self.counts.entry(request).or_default();
            *count += u64::from(batch.tokens(row));
            *count
        })
    }
}

impl Contents {
    fn received(batch: &wire::Batch, row: u32, state: &mut ReplayState, request: u64) -> Contents {
        let mut ids = Vec::new();
        batch.row_ids(row, &mut ids);
        let text = batch.text(row).map(str::to_owned);
        let completion_tokens = state.count(request, batch, row);
        let counts = PlainValues { completion_tokens, ..row_counts(batch, row) };
        Contents { ids, text, counts, facts: row_facts(batch, row, state.wants), rows: 1 }
    }

    fn join(mut self, next: Contents) -> Contents {
        self.ids.extend(next.ids);
        let text = self.text.unwrap_or_default() + next.text.as_deref().unwrap_or_default();
        self.facts.append(next.facts);
        let (counts, rows) = (next.counts, self.rows + next.rows);
        Contents { ids: self.ids, text: next.text.map(|_| text), counts, facts: self.facts, rows }
    }
}

/// The live requests' rows of a frame, as the plugins before left them. A release marker has no batch. `holder` is the plugin
/// itself if its held rows stay held: the rows that wait are those that its earlier instance held. Otherwise none wait.
fn rows_before(
    outcome: &Outcome<'_>,
    batch: Option<&wire::Batch>,
    live: &HashSet<u64>,
    plugins_before: &HashSet<String>,
    holder: Option<&str>,
    state: &mut ReplayState,
) -> OwnedColumns {
    let mut rows = OwnedColumns::at(outcome.received_unix_ns / 1_000_000);
    for (row, request) in (0..).zip(outcome.requests.iter()).filter(|(_, request)| live.contains(&request.0))
    {
        let mut contents = batch.map(|batch| Contents::received(batch, row, state, request.0));
        let first = outcome.actions.partition_point(|action| action.row < row);
        let of_row = outcome.actions[first..].iter().take_while(|action| action.row == row);
        for action in of_row.filter(|action| plugins_before.contains(&*action.plugin)) {
            match (action.verdict, action.replaced(), &mut contents) {
                (Verdict::Hold, ..) => {
                    state
                        .held
                        .entry((request.0, action.plugin.to_string()))
                        .or_default()
                        .extend(contents.take());
                }
                (Verdict::Release, ..) => {
                    let of_plugin = state.held.entry((request.0, action.plugin.to_string())).or_default();
                    let count = action.released().unwrap_or(usize::MAX).min(of_plugin.len());
                    contents = of_plugin.drain(..count).chain(contents).reduce(Contents::join);
                }
                (Verdict::Drop, _, Some(contents)) => {
                    contents.ids.clear();
                    contents.facts.forget_tokens();
                    contents.text.iter_mut().for_each(String::clear);
                }
                (_, Some(StoredReplacement::Row { ids, text }), Some(contents)) => {
                    contents.ids = ids.to_vec();
                    contents.facts.forget_tokens();
                    contents.text = text.map(str::to_owned).or(contents.text.take());
                }
                _ => {}
            }
        }
        let own_rows = contents.as_ref().map_or(0, |contents| contents.rows);
        let mut waiting = 0;
        if let Some(holder) = holder {
            let of_row = outcome.actions[first..].iter().take_while(|action| action.row == row);
            let own = of_row.filter(|action| action.plugin == holder);
            waiting =
                follow_holds(own, state.held.entry((request.0, holder.to_owned())).or_default(), own_rows);
        }
        if let Some(Contents { ids, text, counts, facts, rows: _ }) = contents {
            let values = PlainValues { finished: FinishKind::Running, waiting, ..counts };
            rows.push(request.0, &ids, text.as_deref(), values, &facts);
        }
    }
    rows
}

/// Repeats the holds and releases of a plugin's earlier instance on one row, which stands for `rows` received rows. Returns how
/// many received rows waited when the instance saw the row.
fn follow_holds<'a>(
    actions: impl Iterator<Item = &'a PluginAction<'a>>,
    held: &mut Vec<Contents>,
    mut rows: u32,
) -> u32 {
    let waiting = held.iter().map(|contents| contents.rows).sum();
    for action in actions {
        match action.verdict {
            Verdict::Hold => held.push(Contents { rows: std::mem::take(&mut rows), ..Contents::default() }),
            Verdict::Release => {
                let count = action.released().unwrap_or(usize::MAX).min(held.len());
                rows += held.drain(..count).map(|contents| contents.rows).sum::<u32>();
            }
            _ => {}
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::{Passage, RequestNo};
    use wire::synth::{SynthBatch, SynthRow, SynthWire};

    fn batch(kind: wire::BatchKind, rows: &[(&str, &[i64], &str)]) -> wire::Batch {
        let rows = rows.iter().map(|(rid, ids, text)| SynthRow {
            rid: (*rid).to_owned(),
            ids: ids.to_vec(),
            text: (*text).to_owned(),
            ..SynthRow::default()
        });
        let bytes = SynthBatch { rows: rows.collect() }.encode(kind, SynthWire::Msgpack).unwrap();
        match wire::decode(bytes, &wire::Layouts::builtin()) {
            wire::DecodedFrame::Batch(batch) => batch,
            wire::DecodedFrame::Barrier(barrier) => panic!("{}", barrier.kind),
        }
    }

    /// The outcome of a frame with this many rows, of the requests 1, 2, …
    fn outcome(rows: u64, actions: Vec<PluginAction<'static>>) -> Outcome<'static> {
        Outcome {
            requests: (1..=rows).map(RequestNo).collect(),
            tokens: vec![1; rows as usize].into(),
            actions: actions.into(),
            ..Outcome::new(FrameNo(1), 17_999_999, Passage::Changed)
        }
    }

    fn action(row: u32, plugin: &str, verdict: Verdict, text: &str, ids: &[i64]) -> PluginAction<'static> {
        let (plugin, text) = (plugin.to_owned().into(), text.to_owned().into());
        PluginAction { row, plugin, verdict, text, ids: ids.to_vec().into(), forwarded: 0 }
    }

    #[test]
    fn rows_are_shown_again_as_the_plugins_before_left_them() {
        let rows = [("a", "one"), ("b", "two"), ("c", "three"), ("d", "four"), ("e", "five")];
        let rows = rows.map(|(rid, text)| (rid, &[1][..], text));
        let actions = vec![
            action(0, "first", Verdict::Replace, &StoredReplacement::with_text("other").unwrap(), &[]),
            action(0, "first", Verdict::Replace, "", &[7, 8]),
            action(1, "after", Verdict::Drop, "", &[]),
            action(2, "first", Verdict::Drop, "", &[]),
            action(4, "first", Verdict::Replace, &StoredReplacement::cumulative(9), &[]),
        ];
        let before = HashSet::from(["first".to_owned()]);
        let batch = batch(wire::BatchKind::Str, &rows);
        let live = [1, 2, 3, 5].into();
        let shown = rows_before(
            &outcome(5, actions),
            Some(&batch),
            &live,
            &before,
            None,
            &mut ReplayState::default(),
        );
        shown.show(|shown| {
            assert_eq!(shown.requests, [1, 2, 3, 5], "request 4 is not live");
            assert_eq!(shown.time_ms, 17, "the time of receipt");
            assert_eq!(shown.texts.unwrap(), ["other", "two", "", "five"]);
            assert_eq!((shown.output_ids, shown.output_ends), (&[7, 8, 1, 1][..], &[2, 3, 3, 4][..]));
        });
    }

    #[test]
    fn a_row_whose_ids_a_plugin_before_removed_is_shown_without_ids() {
        let actions = vec![action(0, "first", Verdict::Replace, "", &[])];
        let batch = batch(wire::BatchKind::TokenId, &[("a", &[1, 2], "")]);
        let before = HashSet::from(["first".to_owned()]);
        let shown = rows_before(
            &outcome(1, actions),
            Some(&batch),
            &[1].into(),
            &before,
            None,
            &mut ReplayState::default(),
        );
        shown.show(|shown| assert_eq!((shown.output_ids, shown.output_ends), (&[][..], &[0][..])));
    }

    #[test]
    fn rows_that_a_plugin_before_held_are_shown_at_their_release() {
        let (live, before) = ([1].into(), HashSet::from(["first".to_owned()]));
        let mut state = ReplayState::default();
        let mut shown = |received: Option<(&[i64], &str)>, actions: Vec<PluginAction<'static>>| {
            let batch = received.map(|(ids, text)| batch(wire::BatchKind::Str, &[("a", ids, text)]));
            let shown = rows_before(&outcome(1, actions), batch.as_ref(), &live, &before, None, &mut state);
            shown.show(|shown| (shown.output_ids.to_vec(), shown.texts.unwrap_or_default().concat()))
        };
        let held_rows = || vec![action(0, "first", Verdict::Hold, "", &[])];
        let nothing = (vec![], String::new());
        assert_eq!(shown(Some((&[1], "a")), held_rows()), nothing);
        // The hold of a plugin after this one does not matter.
        let of_both = [held_rows(), vec![action(0, "after", Verdict::Hold, "", &[])]].concat();
        assert_eq!(shown(Some((&[2], "b")), of_both), nothing);
        // A release in a release marker, then a release with a row.
        let releases = |rows: i64| vec![action(0, "first", Verdict::Release, "", &[rows])];
        assert_eq!(shown(None, releases(1)), (vec![1], "a".to_owned()));
        assert_eq!(shown(Some((&[3], "c")), releases(1)), (vec![2, 3], "bc".to_owned()));
        assert_eq!(shown(Some((&[4], "d")), Vec::new()), (vec![4], "d".to_owned()));
        // The released rows are replaced, and the replacement is held again.
        assert_eq!(shown(Some((&[5], "e")), held_rows()), nothing);
        let other = action(0, "first", Verdict::Replace, &StoredReplacement::with_text("x").unwrap(), &[7]);
        assert_eq!(shown(Some((&[6], "f")), [releases(1), vec![other], held_rows()].concat()), nothing);
        assert_eq!(shown(None, releases(1)), (vec![7], "x".to_owned()));
    }
}
