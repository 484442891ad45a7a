//! The plugin: it turns matches into verdicts.

use std::time::Duration;

use afterbay_plugin::text::{Edit, SuffixHold, Vocabulary};
use afterbay_plugin::{
    Batch, Columns, ConfigureError, Opened, Plugin, RequestId, Requests, Row, Verdicts, bad_setting, metrics,
};

use crate::automaton::{Automaton, STATES_MAX};
use crate::escapes::is_escape;
use crate::patterns::Patterns;
use crate::prompts::Prompts;
use crate::scan::{Found, Part, Scan, Text};
use crate::settings::{MASK_BYTES_MAX, MatchAction, Settings};

/// The wanted time of a hold. `limits.hold` caps it: 60 s by default.
const HOLD: Duration = Duration::from_secs(60);

/// A text that makes the automaton's most usual states before the first request.
const SAMPLE: &str = include_str!("sample.txt");

/// The plugin.
pub struct MatchText {
    judge: Judge,
    automaton: Automaton,
    requests: Requests<Request>,
}

/// The settings, and what belongs to the stream.
struct Judge {
    patterns: Patterns,
    vocabulary: Vocabulary,
    action: MatchAction,
    mask: String,
    /// `None` if what stands in the prompt is masked, too.
    prompts: Option<Prompts>,
}

/// The state of a request.
struct Request {
    scan: Scan,
    hold: SuffixHold,
    /// Matches that later text may still extend, and matches in text that is held.
    found: Vec<Found>,
    end: End,
}

/// The way in which a match ended the request's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// No match did.
    Open,
    /// The request finishes with its next row, because of this pattern.
    Finishes(u8),
    /// The rest of the text is dropped, because of this pattern.
    Drops(u8),
}

impl Text for SuffixHold {
    fn text(&self, from: u64, to: u64) -> &[u8] {
        SuffixHold::text(self, from..to)
    }
}

impl Plugin for MatchText {
    type Settings = Settings;
    const COLUMNS: Columns = SuffixHold::COLUMNS;

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        if settings.mask.len() > MASK_BYTES_MAX {
            let message = format!("has {} bytes, must have at most {MASK_BYTES_MAX}", settings.mask.len());
            return Err(bad_setting("/mask", message));
        }
        let (patterns, nfa) = Patterns::new(&settings)?;
        let mut automaton = Automaton::new(nfa);
        warm(&mut automaton);
        let prompts = settings.allow_from_prompt.then(Prompts::default);
        let (vocabulary, action, mask) = (Vocabulary::load()?, settings.action, settings.mask);
        let judge = Judge { patterns, vocabulary, action, mask, prompts };
        Ok(Self { judge, automaton, requests: Requests::new() })
    }

    fn opened(&mut self, request: &Opened) {
        let scan = Scan::new(&mut self.automaton, request.received_tokens == 0);
        let hold = SuffixHold::new();
        self.requests.insert(request.request, Request { scan, hold, found: Vec::new(), end: End::Open });
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        if self.automaton.states() > STATES_MAX {
            self.automaton.shrink(self.requests.iter_mut().map(|(_, request)| &mut request.scan.state));
        }
        let Self { judge, automaton, requests } = self;
        for row in batch {
            if let Some(request) = requests.get_mut(row.request()) {
                judge.row(automaton, row, request, verdicts);
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
        if let Some(prompts) = &mut self.judge.prompts {
            prompts.remove(request);
        }
    }
}

impl Judge {
    fn row(
        &mut self,
        automaton: &mut Automaton,
        row: Row<'_>,
        request: &mut Request,
        verdicts: &mut Verdicts,
    ) {
        match request.end {
            End::Open => {}
            End::Finishes(pattern) => return verdicts.finish_with_text(row, self.reason(pattern), [], ""),
            End::Drops(pattern) => return verdicts.drop(row, self.reason(pattern)),
        }
        let Request { scan, hold, found, end } = request;
        hold.add(row, &self.vocabulary);
        let known = found.len();
        scan.read(automaton, &self.patterns, hold.row_text(), hold, found);
        if row.is_last() {
            scan.end(automaton, &self.patterns, hold, found);
        }
        self.allow_from_prompt(row.request(), hold, found, known);
        if found.is_empty() {
            let keep_from = scan.live_from().unwrap_or(hold.end());
            return hold.settle(row, keep_from, &[], HOLD, &self.vocabulary, verdicts);
        }
        for found in &found[known..] {
            self.count(found, hold.sent());
        }
        if self.action == MatchAction::Mask {
            return self.mask(row, request, verdicts);
        }
        let Some(first) = found.iter().min_by_key(|found| found.start).copied() else { return };
        // An older candidate may become a match that begins earlier.
        if let Some(live_from) = scan.live_from().filter(|live_from| *live_from < first.start) {
            return hold.settle(row, live_from, &[], HOLD, &self.vocabulary, verdicts);
        }
        let reason = self.reason(first.pattern);
        if self.action == MatchAction::Drop {
            hold.release_before(row, first.start, &[], &self.vocabulary, verdicts);
            *end = End::Drops(first.pattern);
        } else if !hold.finish_before(row, first.start, &[], reason, &self.vocabulary, verdicts) {
            *end = End::Finishes(first.pattern);
        }
        found.clear();
    }

    /// Removes the matches from index `from` on that stand in the prompt.
    fn allow_from_prompt(
        &mut self,
        request: RequestId,
        hold: &SuffixHold,
        found: &mut Vec<Found>,
        from: usize,
    ) {
        let Some(prompts) = &mut self.prompts else { return };
        let mut allowed = found[from..].to_vec();
        allowed.retain(|found| {
            let text = hold.text(found.start..found.end);
            found.part == Part::Whole && prompts.contain(request, text, &self.vocabulary)
        });
        let mut index = 0;
        found.retain(|found| {
            index += 1;
            // The same match may be found with an escape before it.
            let is_allowed = index > from
                && allowed.iter().any(|allowed| {
                    allowed == found
                        || allowed.end == found.end
                            && allowed.start > found.start
                            && is_escape(hold.text(found.start..allowed.start))
                });
            if is_allowed {
                let pattern = &self.patterns.get(found.pattern).name;
                metrics::counter_add("matches_from_prompt", &[("pattern", pattern)], 1);
            }
            !is_allowed
        });
    }

    /// Masks the matches that cannot become longer.
    fn mask(&self, row: Row<'_>, request: &mut Request, verdicts: &mut Verdicts) {
        let Request { scan, hold, found, .. } = request;
        found.sort_unstable_by_key(|found| (found.start, found.end));
        let mut keep_from = scan.live_from().unwrap_or(hold.end());
        // A match waits for a candidate that began inside of it: both become one mask.
        for found in found.iter().rev() {
            if found.end > keep_from {
                keep_from = keep_from.min(found.start);
            }
        }
        let mut edits: Vec<Edit<'_>> = Vec::new();
        let mut last: Option<Found> = None;
        for found in found.extract_if(.., |found| found.end <= keep_from) {
            // If two matches differ in an escape before them, the one without the escape counts.
            last = Some(match last {
                Some(before) if found.start < before.end => {
                    let is_behind = is_escape(hold.text(before.start..found.start));
                    let start = if is_behind && found.end >= before.end { found.start } else { before.start };
                    Found { start, end: found.end.max(before.end), ..before }
                }
                before => {
                    edits.extend(before.map(|before| self.edit(before)));
                    found
                }
            });
        }
        edits.extend(last.map(|last| self.edit(last)));
        hold.settle(row, keep_from, &edits, HOLD, &self.vocabulary, verdicts);
    }

    fn edit(&self, found: Found) -> Edit<'_> {
        Edit::new(found.start..found.end, if found.part == Part::Continued { "" } else { &self.mask })
    }

    fn reason(&self, pattern: u8) -> String {
        format!("match-text: {}", self.patterns.get(pattern).name)
    }

    fn count(&self, found: &Found, sent: u64) {
        if found.part == Part::Continued {
            return;
        }
        metrics::counter_add("matches", &[("pattern", &self.patterns.get(found.pattern).name)], 1);
        if found.start < sent {
            metrics::counter_add("late", &[], 1);
        }
    }
}

/// Runs usual text through the automaton: a new state costs some microseconds.
fn warm(automaton: &mut Automaton) {
    let mut state = automaton.start(true);
    for byte in SAMPLE.bytes() {
        state = match automaton.step(state, byte) {
            crate::automaton::Step::Simple(next) => next,
            crate::automaton::Step::Full(transition) => transition.next,
        };
    }
}

afterbay_plugin::export!(MatchText);
