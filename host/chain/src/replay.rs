//! State by replay: an instance that is to take over is shown the rows of the live requests again, out of the journal and off
//! the path; what it says of them is not done. Meanwhile the one before it goes on, and what comes is kept for the new one,
//! which is shown that off the path, too, and so on until little is left.
//!
//! Owns the reading and its bounds. When the instance takes over is the seat's.

use crate::opened::OpenedRequest;
use afterbay_journal::Outcome;
use afterbay_journal::{BacklogItem, BacklogReader, FrameNo, StoredReplacement, Verdict, is_release_marker};
use afterbay_runtime::{
    ColumnSet, Columns, FinishKind, OwnedColumns, PlainValues, Plugin, StateError, TokenId,
};
use afterbay_wire as wire;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a replay may take. What takes longer is given up, and the requests are told of as after a fault.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of what comes meanwhile that are kept; past it, likewise.
const MISSED_BYTES_MAX: usize = 64 << 20;
/// Batches that are shown on the path, since the one in hand waits for it.
const MISSED_BATCHES_AT_ONCE: usize = 2;

/// What is to be shown to whom.
pub struct Job {
    pub instance: Plugin,
    pub requests: Vec<OpenedRequest>,
    /// With outcomes, from the first frame that has a row of theirs.
    pub backlog: BacklogReader,
    /// The last frame that the plugins have seen.
    pub through: FrameNo,
    pub layouts: wire::Layouts,
    /// The plugins that are asked before it: it sees rows as they left them.
    pub before: HashSet<String>,
}

/// An instance that knows what it was shown, or why it does not.
pub struct Replayed {
    pub instance: Plugin,
    /// Rows that it was shown. The error is for people.
    pub shown: Result<u64, String>,
}

/// An instance that was shown what has come before, or could not be.
pub struct Shown {
    pub plugin: String,
    pub number: u64,
    pub replayed: Replayed,
}

impl Job {
    /// Shows it everything.
    pub fn run(mut self) -> Replayed {
        let shown = self.show();
        Replayed { instance: self.instance, shown }
    }

    fn show(&mut self) -> Result<u64, String> {
        let until = Instant::now() + TIME_MAX;
        OpenedRequest::open(&self.requests, &mut self.instance).map_err(|fault| fault.to_string())?;
        let live: HashSet<u64> = self.requests.iter().map(|request| request.request).collect();
        let mut waiting = Waiting::new();
        let mut decoder = wire::Decoder::new(self.layouts.clone());
        let mut rows = 0;
        while !live.is_empty() && self.backlog.position() <= self.through {
            if Instant::now() > until {
                return Err(format!("the journal was not read in {} s", TIME_MAX.as_secs()));
            }
            let frame = match self.backlog.next().map_err(|error| error.to_string())? {
                None => break,
                Some(BacklogItem::Skipped(..)) => return Err("frames went on without being kept".to_owned()),
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
            let shown = left(&outcome, batch.as_ref(), &live, &self.before, &mut waiting);
            if shown.rows() > 0 {
                rows += shown.rows() as u64;
                let said = shown.show(|columns| self.instance.process(columns));
                drop(said.map_err(|fault| fault.to_string())?);
            }
        }
        Ok(rows)
    }
}

/// What an instance knows of its requests, for the one that takes over.
pub struct Handed {
    /// Its component's.
    pub version: String,
    pub state: Vec<u8>,
}

impl Handed {
    /// Gives it to the instance, and tells it of the requests that were live then.
    pub fn run(self, mut instance: Plugin, requests: &[OpenedRequest]) -> Replayed {
        let shown = self.give(&mut instance);
        let opened = |()| OpenedRequest::open(requests, &mut instance).map_err(|fault| fault.to_string());
        let shown = shown.and_then(opened).map(|()| 0);
        Replayed { instance, shown }
    }

    fn give(&self, instance: &mut Plugin) -> Result<(), String> {
        let Handed { version, state } = self;
        let imported = instance.import_state(version, state).map_err(|fault| fault.to_string())?;
        imported.unwrap_or(Ok(())).map_err(|error| match error {
            StateError::UnknownVersion => format!("it does not know the state of version {version}"),
            StateError::Corrupt => format!("it cannot read the state of version {version}"),
        })
    }
}

/// A row as the plugins before have left it.
#[derive(Clone, Default)]
struct Left {
    ids: Vec<TokenId>,
    text: Option<String>,
    completion_tokens: u64,
}

/// Rows of each request that wait with each plugin before.
type Waiting = HashMap<(u64, String), Vec<Left>>;

impl Left {
    fn came(batch: &wire::Batch, row: u32) -> Left {
        let mut ids = Vec::new();
        batch.row_ids(row, &mut ids);
        let text = batch.text(row).map(str::to_owned);
        Left { ids, text, completion_tokens: batch.completion_tokens(row).unwrap_or(0) }
    }

    /// Both as one.
    fn and(mut self, next: Left) -> Left {
        self.ids.extend(next.ids);
        let text = self.text.unwrap_or_default() + next.text.as_deref().unwrap_or_default();
        Left { ids: self.ids, text: next.text.map(|_| text), completion_tokens: next.completion_tokens }
    }
}

/// The live requests' rows of a frame (none: one of Afterbay's own), as the plugins before have left them.
fn left(
    outcome: &Outcome<'_>,
    batch: Option<&wire::Batch>,
    live: &HashSet<u64>,
    before: &HashSet<String>,
    waiting: &mut Waiting,
) -> OwnedColumns {
    let mut rows = OwnedColumns::default();
    for (row, request) in (0..).zip(outcome.requests.iter()).filter(|(_, request)| live.contains(&request.0))
    {
        let mut own = batch.map(|batch| Left::came(batch, row));
        let first = outcome.actions.partition_point(|action| action.row < row);
        let of_row = outcome.actions[first..].iter().take_while(|action| action.row == row);
        for action in of_row.filter(|action| before.contains(&*action.plugin)) {
            match (action.verdict, action.replaced(), &mut own) {
                (Verdict::Hold, ..) => {
                    waiting.entry((request.0, action.plugin.to_string())).or_default().extend(own.take());
                }
                (Verdict::Release, ..) => {
                    let of_plugin = waiting.entry((request.0, action.plugin.to_string())).or_default();
                    let count = action.released().unwrap_or(usize::MAX).min(of_plugin.len());
                    let released = of_plugin.drain(..count);
                    own = released.chain(own).reduce(Left::and);
                }
                (Verdict::Drop, _, Some(own)) => {
                    own.ids.clear();
                    own.text.iter_mut().for_each(String::clear);
                }
                (_, Some(StoredReplacement::Row { ids, text }), Some(own)) => {
                    own.ids = ids.to_vec();
                    own.text = text.map(str::to_owned).or(own.text.take());
                }
                _ => {}
            }
        }
        if let Some(Left { ids, text, completion_tokens }) = own {
            // The plugin's instance of that time held the rows; this instance holds none.
            let values = PlainValues { completion_tokens, finished: FinishKind::Running, waiting: 0 };
            rows.push(request.0, &ids, text.as_deref(), values);
        }
    }
    rows
}

/// What came while an instance was shown what had come before.
#[derive(Default)]
pub struct Missed {
    what: Vec<Came>,
    bytes: usize,
}

enum Came {
    Opened(Vec<OpenedRequest>),
    Rows(OwnedColumns),
    Changed(u64, Option<Arc<str>>),
    Closed(Vec<u64>),
}

impl Missed {
    /// Requests began. False: it is too much by now.
    pub fn opened(&mut self, requests: Vec<OpenedRequest>) -> bool {
        self.add(requests.len() * 128, Came::Opened(requests))
    }

    /// A batch came.
    pub fn rows(&mut self, columns: &Columns<'_>, wants: ColumnSet) -> bool {
        let rows = OwnedColumns::copy(columns, wants);
        self.add(rows.bytes(), Came::Rows(rows))
    }

    /// A request's attributes are others.
    pub fn changed(&mut self, request: u64, attributes: Option<Arc<str>>) -> bool {
        self.add(
            attributes.as_ref().map_or(8, |attributes| attributes.len()),
            Came::Changed(request, attributes),
        )
    }

    /// Requests ended.
    pub fn closed(&mut self, requests: &[u64]) -> bool {
        self.add(requests.len() * 8, Came::Closed(requests.to_vec()))
    }

    fn add(&mut self, bytes: usize, came: Came) -> bool {
        self.bytes += bytes;
        self.what.push(came);
        self.bytes <= MISSED_BYTES_MAX
    }

    /// Whether a batch would wait for long if it were shown on the path.
    pub fn is_much(&self) -> bool {
        let batches = self.what.iter().filter(|came| matches!(came, Came::Rows(_)));
        batches.count() > MISSED_BATCHES_AT_ONCE
    }

    /// Shows it off the path to an instance that has seen so many rows.
    pub fn run(self, mut instance: Plugin, rows: u64) -> Replayed {
        let shown = self.show(&mut instance).map(|more| rows + more);
        Replayed { instance, shown }
    }

    /// Shows all of it to the instance that takes over; how many rows. The error is for people.
    pub fn show(&self, instance: &mut Plugin) -> Result<u64, String> {
        let mut shown = 0;
        for came in &self.what {
            let told = match came {
                Came::Opened(requests) => OpenedRequest::open(requests, instance),
                Came::Rows(rows) => {
                    shown += rows.rows() as u64;
                    rows.show(|columns| instance.process(columns)).map(drop)
                }
                Came::Changed(request, attributes) => {
                    instance.set_attributes(*request, attributes.clone());
                    instance.changed(&[*request])
                }
                Came::Closed(requests) => {
                    requests.iter().for_each(|request| instance.set_attributes(*request, None));
                    instance.close(requests)
                }
            };
            told.map_err(|fault| fault.to_string())?;
        }
        Ok(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::RequestNo;
    use afterbay_journal::{Passage, PluginAction};
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

    /// Of as many rows, the first of request 1.
    fn outcome(rows: u64, actions: Vec<PluginAction<'static>>) -> Outcome<'static> {
        Outcome {
            requests: (1..=rows).map(RequestNo).collect(),
            tokens: vec![1; rows as usize].into(),
            actions: actions.into(),
            ..Outcome::new(FrameNo(1), 0, Passage::Changed)
        }
    }

    fn action(row: u32, plugin: &str, verdict: Verdict, text: &str, ids: &[i64]) -> PluginAction<'static> {
        let (plugin, text) = (plugin.to_owned().into(), text.to_owned().into());
        PluginAction { row, plugin, verdict, text, ids: ids.to_vec().into(), forwarded: 0 }
    }

    #[test]
    fn rows_are_shown_again_as_the_plugins_before_have_left_them() {
        let rows = [("a", "one"), ("b", "two"), ("c", "three"), ("d", "four"), ("e", "five")];
        let rows = rows.map(|(rid, text)| (rid, &[1][..], text));
        let actions = vec![
            action(0, "first", Verdict::Replace, &StoredReplacement::with_text("other").unwrap(), &[]),
            action(0, "first", Verdict::Replace, "", &[7, 8]),
            action(1, "behind", Verdict::Drop, "", &[]),
            action(2, "first", Verdict::Drop, "", &[]),
            action(4, "first", Verdict::Replace, &StoredReplacement::cumulative(9), &[]),
        ];
        let before = HashSet::from(["first".to_owned()]);
        let batch = batch(wire::BatchKind::Str, &rows);
        let live = [1, 2, 3, 5].into();
        let shown = left(&outcome(5, actions), Some(&batch), &live, &before, &mut Waiting::new());
        shown.show(|shown| {
            assert_eq!(shown.requests, [1, 2, 3, 5], "of the fourth nothing is wanted");
            assert_eq!(shown.texts, ["other", "two", "", "five"]);
            assert_eq!((shown.output_ids, shown.output_ends), (&[7, 8, 1, 1][..], &[2, 3, 3, 4][..]));
        });
    }

    #[test]
    fn a_row_that_was_left_without_ids_is_shown_without() {
        let actions = vec![action(0, "first", Verdict::Replace, "", &[])];
        let batch = batch(wire::BatchKind::TokenId, &[("a", &[1, 2], "")]);
        let before = HashSet::from(["first".to_owned()]);
        let shown = left(&outcome(1, actions), Some(&batch), &[1].into(), &before, &mut Waiting::new());
        shown.show(|shown| assert_eq!((shown.output_ids, shown.output_ends), (&[][..], &[0][..])));
    }

    #[test]
    fn what_a_plugin_before_held_is_shown_where_it_went_on() {
        let (live, before) = ([1].into(), HashSet::from(["first".to_owned()]));
        let mut waiting = Waiting::new();
        let mut shown = |came: Option<(&[i64], &str)>, actions: Vec<PluginAction<'static>>| {
            let batch = came.map(|(ids, text)| batch(wire::BatchKind::Str, &[("a", ids, text)]));
            let shown = left(&outcome(1, actions), batch.as_ref(), &live, &before, &mut waiting);
            shown.show(|shown| (shown.output_ids.to_vec(), shown.texts.concat()))
        };
        let held_rows = || vec![action(0, "first", Verdict::Hold, "", &[])];
        let nothing = (vec![], String::new());
        assert_eq!(shown(Some((&[1], "a")), held_rows()), nothing);
        // One that is behind holds it, too: the instance saw it.
        let of_both = [held_rows(), vec![action(0, "behind", Verdict::Hold, "", &[])]].concat();
        assert_eq!(shown(Some((&[2], "b")), of_both), nothing);
        // In a frame of Afterbay's own, then with a row.
        let releases = |rows: i64| vec![action(0, "first", Verdict::Release, "", &[rows])];
        assert_eq!(shown(None, releases(1)), (vec![1], "a".to_owned()));
        assert_eq!(shown(Some((&[3], "c")), releases(1)), (vec![2, 3], "bc".to_owned()));
        assert_eq!(shown(Some((&[4], "d")), Vec::new()), (vec![4], "d".to_owned()));
        // Other ids for all of it, which wait in their turn.
        assert_eq!(shown(Some((&[5], "e")), held_rows()), nothing);
        let other = action(0, "first", Verdict::Replace, &StoredReplacement::with_text("x").unwrap(), &[7]);
        assert_eq!(shown(Some((&[6], "f")), [releases(1), vec![other], held_rows()].concat()), nothing);
        assert_eq!(shown(None, releases(1)), (vec![7], "x".to_owned()));
    }
}
