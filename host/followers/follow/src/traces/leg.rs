//! One request on one stream: what the records say of its way, in bounded memory.
//!
//! Rows are summed up per sent frame. The first and the last sent frame of each sink are kept, and the slowest ones between.

use std::collections::VecDeque;
use std::sync::Arc;

use afterbay_journal::reader::RequestInfo;
use afterbay_journal::{Outcome, PluginAction, Position, Verdict};
use afterbay_journal_view::wording;
use opentelemetry::trace::SpanContext;

/// Most entries of rows that wait to be sent. Further rows count with the last entry.
const WAITING_MAX: usize = 256;
/// Most sent frames of one sink that become spans.
pub(crate) const FRAMES_MAX: usize = 16;
/// Most sinks and plugins of one leg that become spans.
pub(crate) const PARTS_MAX: usize = 24;
/// Most verdicts of one plugin that become events of its span.
pub(crate) const VERDICTS_MAX: usize = 32;
/// Most waits of held rows of one plugin that become spans.
pub(crate) const HOLDS_MAX: usize = 8;
/// Most characters of a reason.
pub(crate) const REASON_CHARS_MAX: usize = 100;

/// A request on one stream.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) rid: String,
    /// The engine's span, if the request's attributes name one.
    pub(crate) engine: Option<SpanContext>,
    /// Time of receipt of the first row, unix nanoseconds.
    pub(crate) begun_unix_ns: Option<u64>,
    /// The number of the newest segment that lists the request as open.
    pub(crate) segment: u64,
    waiting: VecDeque<Rows>,
    /// Frames that were sent and not taken.
    sending: Vec<(Arc<str>, SentRows)>,
    pub(crate) sinks: Vec<SinkPart>,
    pub(crate) plugins: Vec<PluginPart>,
    /// The action that ended the request for its reader before the sender did.
    pub(crate) early: Option<PluginAction<'static>>,
    /// The place of the request's record.
    pub(crate) record: Option<Position>,
    /// The places of the first and the last row that were read.
    pub(crate) places: Option<[(Position, u32); 2]>,
    /// Frames, verdicts, waits and parts past the bounds.
    pub(crate) left_out: u64,
}

/// Rows that wait to be sent.
#[derive(Clone, Debug, PartialEq)]
struct Rows {
    first_frame: u64,
    last_frame: u64,
    /// Time of receipt of the first row, unix nanoseconds.
    received_unix_ns: u64,
    rows: u64,
    /// The sink that the rows go to, in a stream with several sinks.
    sink: Option<Arc<str>>,
}

/// Rows that one frame carried to a sink. Times are unix nanoseconds, 0 if unknown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentRows {
    pub(crate) sequence: u64,
    first_frame: u64,
    last_frame: u64,
    /// Time of receipt of the first row.
    pub(crate) received_unix_ns: u64,
    pub(crate) sent_unix_ns: u64,
    pub(crate) taken_unix_ns: u64,
    pub(crate) rows: u64,
    /// Frames that the sink had not taken when this one was sent.
    pub(crate) in_flight: u64,
    /// Whether the sink had frames to take at some time between receipt and sending.
    pub(crate) reader_was_busy: bool,
}

impl SentRows {
    /// The last known time.
    pub(crate) fn end_unix_ns(&self) -> u64 {
        self.taken_unix_ns.max(self.sent_unix_ns).max(self.received_unix_ns)
    }

    fn took_ns(&self) -> u64 {
        self.end_unix_ns() - self.received_unix_ns
    }
}

/// The rows that went to one sink.
#[derive(Debug)]
pub(crate) struct SinkPart {
    pub(crate) sink: Arc<str>,
    /// The first frame, the slowest ones, and at the end the last.
    pub(crate) kept: Vec<SentRows>,
    pub(crate) frames: u64,
    pub(crate) rows: u64,
    pub(crate) first_unix_ns: u64,
    pub(crate) last_unix_ns: u64,
}

/// The verdicts of one plugin. Times are those of the rows' receipt, unix nanoseconds.
#[derive(Debug)]
pub(crate) struct PluginPart {
    pub(crate) plugin: String,
    pub(crate) first_unix_ns: u64,
    pub(crate) last_unix_ns: u64,
    /// The word of each verdict, and the number of its rows.
    pub(crate) counts: Vec<(&'static str, u64)>,
    pub(crate) verdicts: Vec<PluginVerdict>,
    pub(crate) holds: Vec<Hold>,
    /// Rows that the plugin holds now.
    holding: Option<Hold>,
}

/// One verdict.
#[derive(Debug)]
pub(crate) struct PluginVerdict {
    pub(crate) unix_ns: u64,
    pub(crate) verdict: &'static str,
    pub(crate) reason: String,
}

/// A wait of held rows, from the receipt of the first one.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) from_unix_ns: u64,
    pub(crate) until_unix_ns: u64,
    pub(crate) rows: u64,
    pub(crate) why: String,
    /// The reason of the release, if the plugin did not ask for it.
    pub(crate) released: String,
}

/// The state of a sink when a frame was sent to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtSending {
    pub(crate) in_flight: u64,
    /// The last time at which the sink had a frame to take, unix nanoseconds.
    pub(crate) last_busy_unix_ns: u64,
}

impl Leg {
    pub(crate) fn new(
        rid: &str,
        engine: Option<SpanContext>,
        begun_unix_ns: Option<u64>,
        segment: u64,
    ) -> Leg {
        Leg {
            rid: rid.to_owned(),
            engine,
            begun_unix_ns,
            segment,
            waiting: VecDeque::new(),
            sending: Vec::new(),
            sinks: Vec::new(),
            plugins: Vec::new(),
            early: None,
            record: None,
            places: None,
            left_out: 0,
        }
    }

    /// Adds a row, with its index in the outcome.
    pub(crate) fn row(&mut self, outcome: &Outcome<'static>, row: u32) {
        let unix_ns = outcome.received_unix_ns;
        self.begun_unix_ns.get_or_insert(unix_ns);
        let of_row = || outcome.actions.iter().filter(move |action| action.row == row);
        for action in of_row() {
            self.action(action, unix_ns);
        }
        if self.early.is_none() {
            self.early = of_row().rfind(|action| action.ends_request()).cloned();
        }
        let is_finish = outcome.finished.iter().any(|finish| finish.row == row);
        let is_dropped = |action: &PluginAction<'_>| {
            action.is_swallowed() || (action.verdict == Verdict::Drop && !is_finish)
        };
        let is_held = of_row().next_back().is_some_and(|action| action.verdict == Verdict::Hold);
        if !is_held && !of_row().any(is_dropped) {
            self.wait(outcome.frame.0, unix_ns);
        }
    }

    fn wait(&mut self, frame: u64, received_unix_ns: u64) {
        if self.waiting.len() >= WAITING_MAX
            && let Some(last) = self.waiting.back_mut()
        {
            (last.last_frame, last.rows) = (frame, last.rows + 1);
            return;
        }
        let (first_frame, last_frame) = (frame, frame);
        self.waiting.push_back(Rows { first_frame, last_frame, received_unix_ns, rows: 1, sink: None });
    }

    fn action(&mut self, action: &PluginAction<'static>, unix_ns: u64) {
        let Some(at) = self.plugin(&action.plugin, unix_ns) else {
            self.left_out += 1;
            return;
        };
        let part = &mut self.plugins[at];
        part.last_unix_ns = unix_ns;
        let word = wording::verdict(action.verdict);
        match part.counts.iter_mut().find(|(verdict, _)| *verdict == word) {
            Some((_, count)) => *count += 1,
            None => part.counts.push((word, 1)),
        }
        let reason = reason(action);
        match action.verdict {
            Verdict::Hold => match &mut part.holding {
                Some(hold) => hold.rows += 1,
                none => {
                    let (from_unix_ns, released) = (unix_ns, String::new());
                    *none = Some(Hold { from_unix_ns, until_unix_ns: 0, rows: 1, why: reason, released });
                }
            },
            Verdict::Release => {
                if let Some(hold) = part.holding.take() {
                    let hold = Hold { until_unix_ns: unix_ns, released: reason, ..hold };
                    self.left_out += u64::from(!part.keep_hold(hold));
                }
            }
            _ if part.verdicts.len() < VERDICTS_MAX => {
                part.verdicts.push(PluginVerdict { unix_ns, verdict: word, reason });
            }
            _ => self.left_out += 1,
        }
    }

    fn plugin(&mut self, plugin: &str, unix_ns: u64) -> Option<usize> {
        if let Some(at) = self.plugins.iter().position(|part| part.plugin == plugin) {
            return Some(at);
        }
        if self.plugins.len() >= PARTS_MAX {
            return None;
        }
        self.plugins.push(PluginPart {
            plugin: plugin.to_owned(),
            first_unix_ns: unix_ns,
            last_unix_ns: unix_ns,
            counts: Vec::new(),
            verdicts: Vec::new(),
            holds: Vec::new(),
            holding: None,
        });
        Some(self.plugins.len() - 1)
    }

    /// Records the sink of the row in this frame.
    pub(crate) fn route(&mut self, frame: u64, sink: &Arc<str>) {
        if let Some(rows) = self.waiting.iter_mut().rfind(|rows| rows.last_frame == frame) {
            rows.sink = Some(sink.clone());
        }
    }

    /// A frame was sent whole. Returns whether it carried a row of this leg.
    pub(crate) fn sent_whole(
        &mut self,
        (sink, sequence): (&Arc<str>, u64),
        frame: u64,
        unix_ns: u64,
        at: AtSending,
    ) -> bool {
        let found = self.waiting.binary_search_by(|rows| match rows {
            rows if rows.last_frame < frame => std::cmp::Ordering::Less,
            rows if rows.first_frame > frame => std::cmp::Ordering::Greater,
            _ => std::cmp::Ordering::Equal,
        });
        let Some(index) = found.ok().filter(|index| self.waiting[*index].may_go_to(sink)) else {
            return false;
        };
        let Some(rows) = self.waiting.remove(index) else { return false };
        self.send((sink, sequence), rows, unix_ns, at);
        true
    }

    /// A frame was sent with all rows of this leg up to this frame. Returns whether it carried one.
    pub(crate) fn sent_through(
        &mut self,
        (sink, sequence): (&Arc<str>, u64),
        last: u64,
        unix_ns: u64,
        at: AtSending,
    ) -> bool {
        let mut joined: Option<Rows> = None;
        self.waiting.retain(|rows| {
            let is_sent = rows.first_frame <= last && rows.may_go_to(sink);
            if is_sent {
                match &mut joined {
                    Some(joined) => {
                        (joined.last_frame, joined.rows) = (rows.last_frame, joined.rows + rows.rows)
                    }
                    none => *none = Some(rows.clone()),
                }
            }
            !is_sent
        });
        let is_any = joined.is_some();
        joined.into_iter().for_each(|rows| self.send((sink, sequence), rows, unix_ns, at));
        is_any
    }

    fn send(&mut self, (sink, sequence): (&Arc<str>, u64), rows: Rows, unix_ns: u64, at: AtSending) {
        let Rows { first_frame, last_frame, received_unix_ns, rows, .. } = rows;
        let sent = SentRows {
            sequence,
            first_frame,
            last_frame,
            received_unix_ns,
            sent_unix_ns: unix_ns,
            taken_unix_ns: 0,
            rows,
            in_flight: at.in_flight,
            reader_was_busy: at.last_busy_unix_ns >= received_unix_ns,
        };
        self.sending.push((sink.clone(), sent));
    }

    /// A sink has taken a frame.
    pub(crate) fn taken(&mut self, sink: &Arc<str>, sequence: u64, unix_ns: u64) {
        if let Some(at) = self.sending.iter().position(|(to, sent)| to == sink && sent.sequence == sequence) {
            let (_, sent) = self.sending.swap_remove(at);
            self.keep(sink, SentRows { taken_unix_ns: unix_ns, ..sent });
        }
    }

    /// A frame never arrived: its rows wait again.
    pub(crate) fn never_arrived(&mut self, sink: &Arc<str>, sequence: u64) {
        if let Some(at) = self.sending.iter().position(|(to, sent)| to == sink && sent.sequence == sequence) {
            let (_, sent) = self.sending.swap_remove(at);
            let SentRows { first_frame, last_frame, received_unix_ns, rows, .. } = sent;
            let rows = Rows { first_frame, last_frame, received_unix_ns, rows, sink: Some(sink.clone()) };
            let at = self.waiting.partition_point(|other| other.first_frame < first_frame);
            self.waiting.insert(at, rows);
        }
    }

    /// Whether nothing of the leg waits to be sent or taken.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.sending.is_empty()
    }

    /// Closes what is open: frames that were not taken, and held rows that were not released.
    pub(crate) fn close(&mut self, info: &RequestInfo) {
        for (sink, sent) in std::mem::take(&mut self.sending) {
            self.keep(&sink, sent);
        }
        for part in &mut self.plugins {
            if let Some(hold) = part.holding.take() {
                let until_unix_ns = info.last_unix_ns.max(hold.from_unix_ns);
                self.left_out += u64::from(!part.keep_hold(Hold { until_unix_ns, ..hold }));
            }
        }
    }

    fn keep(&mut self, sink: &Arc<str>, sent: SentRows) {
        let at = match self.sinks.iter().position(|part| part.sink == *sink) {
            Some(at) => at,
            None if self.sinks.len() >= PARTS_MAX => {
                self.left_out += 1;
                return;
            }
            None => {
                self.sinks.push(SinkPart {
                    sink: sink.clone(),
                    kept: Vec::new(),
                    frames: 0,
                    rows: 0,
                    first_unix_ns: sent.received_unix_ns,
                    last_unix_ns: sent.received_unix_ns,
                });
                self.sinks.len() - 1
            }
        };
        self.left_out += u64::from(!self.sinks[at].add(sent));
    }

    /// The last time that is known of the leg, unix nanoseconds.
    pub(crate) fn end_unix_ns(&self, info: &RequestInfo) -> u64 {
        self.sinks.iter().map(|part| part.last_unix_ns).fold(info.last_unix_ns, u64::max)
    }
}

impl Rows {
    fn may_go_to(&self, sink: &Arc<str>) -> bool {
        self.sink.as_ref().is_none_or(|to| to == sink)
    }
}

impl SinkPart {
    /// Adds a sent frame. Returns false if a frame is left out for it.
    fn add(&mut self, sent: SentRows) -> bool {
        self.frames += 1;
        self.rows += sent.rows;
        self.first_unix_ns = self.first_unix_ns.min(sent.received_unix_ns);
        self.last_unix_ns = self.last_unix_ns.max(sent.end_unix_ns());
        self.kept.push(sent);
        let is_full = self.kept.len() > FRAMES_MAX;
        if is_full {
            let between = 1..self.kept.len() - 1;
            if let Some(fastest) = between.min_by_key(|at| self.kept[*at].took_ns()) {
                self.kept.remove(fastest);
            }
        }
        !is_full
    }
}

impl PluginPart {
    /// Adds a wait. Returns false if the shortest one is left out for it.
    fn keep_hold(&mut self, hold: Hold) -> bool {
        self.holds.push(hold);
        let is_full = self.holds.len() > HOLDS_MAX;
        if is_full {
            let shortest = (0..self.holds.len()).min_by_key(|at| {
                let hold = &self.holds[*at];
                hold.until_unix_ns.saturating_sub(hold.from_unix_ns)
            });
            shortest.into_iter().for_each(|at| drop(self.holds.remove(at)));
        }
        !is_full
    }
}

/// The reason that an operator may see. The text of other verdicts is the request's: the replacement, the text that matched,
/// a note, a message for the client, the message of a fault.
fn reason(action: &PluginAction<'_>) -> String {
    match action.verdict {
        Verdict::Drop | Verdict::Hold | Verdict::Release => {
            action.text.chars().take(REASON_CHARS_MAX).collect()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_the_last_and_the_slowest_frames_of_a_request_become_spans() {
        let mut leg = Leg::new("r", None, None, 0);
        let sink: Arc<str> = "reader".into();
        let at = AtSending { in_flight: 0, last_busy_unix_ns: 0 };
        for frame in 1..=1000 {
            leg.wait(frame, frame * 100);
            // Every hundredth frame waits long.
            let sent = frame * 100 + if frame % 100 == 50 { 90 } else { 1 };
            assert!(leg.sent_whole((&sink, frame), frame, sent, at));
            leg.taken(&sink, frame, sent + 1);
        }
        let [part] = &leg.sinks[..] else { panic!("{:?}", leg.sinks) };
        assert_eq!((part.frames, part.rows, part.kept.len()), (1000, 1000, FRAMES_MAX));
        assert_eq!(leg.left_out, 1000 - FRAMES_MAX as u64);
        let kept: Vec<u64> = part.kept.iter().map(|sent| sent.sequence).collect();
        assert_eq!((kept.first(), kept.last()), (Some(&1), Some(&1000)));
        assert!((0..10).all(|slow| kept.contains(&(slow * 100 + 50))), "{kept:?}");
    }

    #[test]
    fn rows_that_wait_are_bounded_and_all_are_counted() {
        let mut leg = Leg::new("r", None, None, 0);
        let sink: Arc<str> = "reader".into();
        (1..=10_000).for_each(|frame| leg.wait(frame, frame));
        assert_eq!(leg.waiting.len(), WAITING_MAX);
        let at = AtSending { in_flight: 2, last_busy_unix_ns: 5 };
        assert!(leg.sent_through((&sink, 1), 10_000, 10_001, at));
        leg.taken(&sink, 1, 10_002);
        assert!(leg.is_settled());
        assert_eq!(leg.sinks[0].rows, 10_000);
        let sent = &leg.sinks[0].kept[0];
        assert_eq!((sent.received_unix_ns, sent.rows, sent.reader_was_busy), (1, 10_000, true));
    }

    #[test]
    fn rows_of_a_frame_that_never_arrived_are_sent_again() {
        let mut leg = Leg::new("r", None, None, 0);
        let sink: Arc<str> = "reader".into();
        let at = AtSending { in_flight: 0, last_busy_unix_ns: 0 };
        (1..=2).for_each(|frame| leg.wait(frame, frame));
        assert!(leg.sent_whole((&sink, 1), 1, 3, at));
        leg.never_arrived(&sink, 1);
        assert!(!leg.is_settled());
        assert!(leg.sent_whole((&sink, 1), 1, 9, at) && leg.sent_whole((&sink, 2), 2, 9, at));
        (1..=2).for_each(|sequence| leg.taken(&sink, sequence, 10));
        assert!(leg.is_settled());
        assert_eq!(leg.sinks[0].rows, 2);
    }
}
