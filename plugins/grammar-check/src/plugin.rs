//! The plugin: it turns judgements into log lines, notes in the journal, metrics and verdicts.

use std::time::Duration;

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, FinishKind, FinishReason, Opened, Plugin, RequestId, Row, TokenId,
    Verdicts, metrics, missing, tokenizer,
};

use crate::calls::{CallAction, CallFault, CallResult};
use crate::{FindingKind, GrammarCheck, Judgement, OnViolation, RowAction, Settings, Tokenizer};

/// The time for which rows of a call are held: the longest that a configuration allows.
const HOLD: Duration = Duration::from_secs(60);

/// The tokenizer of the stream's model, read from the host.
struct HostTokenizer;

impl Tokenizer for HostTokenizer {
    fn size(&self) -> u32 {
        tokenizer::size()
    }

    fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>> {
        tokenizer::token_bytes(first, count)
    }

    fn special(&self) -> Vec<TokenId> {
        tokenizer::special()
    }

    fn eos(&self) -> Vec<TokenId> {
        tokenizer::end_of_text()
    }

    fn special_of(&self, text: &str) -> Option<TokenId> {
        match tokenizer::encode(text).as_deref() {
            Ok(&[id]) if tokenizer::special().binary_search(&id).is_ok() => Some(id),
            _ => None,
        }
    }
}

impl Plugin for GrammarCheck {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::FINISHED).union(Columns::WAITING);
    const WANTS: Calls = Calls::CHANGED;

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        if tokenizer::size() == 0 {
            return Err(missing("the tokenizer has no tokens"));
        }
        Self::new(&settings, &HostTokenizer)
    }

    fn opened(&mut self, request: &Opened) {
        self.open(request);
    }

    fn changed(&mut self, request: RequestId) {
        if let Some(warning) = self.attributes_changed(request) {
            afterbay_plugin::warn!(request: request, "{warning}");
        }
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        self.begin_batch();
        self.reserve_for(batch.len());
        for row in batch {
            let finish = row.finish().unwrap_or(FinishKind::Running);
            let waiting = row.waiting().unwrap_or(0);
            let calls = self.calls_row(row.request(), row.ids(), waiting, finish);
            let is_free = calls.as_ref().is_none_or(|(result, _)| result.action == CallAction::Pass);
            if let Some((result, on_violation)) = calls {
                apply_calls(row, result, on_violation, verdicts);
            }
            let Some(judgement) = self.row(row.request(), row.ids(), finish) else { continue };
            apply_judgement(row, judgement, is_free, verdicts);
        }
        self.end_batch();
    }

    fn closed(&mut self, request: RequestId) {
        self.close(request);
    }
}

/// Gives the verdict on a row's tool calls.
fn apply_calls(row: Row<'_>, result: CallResult, on_violation: OnViolation, verdicts: &mut Verdicts) {
    let CallResult { action, valid, leaked, unread, unchecked } = result;
    let unread = unread.map(|format| format!("a marker of {format}, which tool_calls does not read"));
    let unchecked = unchecked.map(|why| format!("not checked: {why}"));
    for (counter, why) in [("unread_calls", unread), ("not_checked", unchecked)] {
        let Some(why) = why else { continue };
        let reason = format!("tool call: {why}");
        metrics::counter_add(counter, &[], 1);
        afterbay_plugin::warn!(request: row.request(), "{reason}");
        if action == CallAction::Pass {
            verdicts.annotate(row, reason);
        }
    }
    if valid > 0 {
        metrics::counter_add("valid_calls", &[], u64::from(valid));
    }
    if leaked {
        metrics::counter_add("calls_not_held", &[], 1);
        afterbay_plugin::warn!(request: row.request(), "a tool call took too long to be held");
    }
    match action {
        CallAction::Pass => {}
        CallAction::Hold => verdicts.hold(row, HOLD),
        CallAction::Release => verdicts.release(row),
        CallAction::ReleaseAndHold => verdicts.release_and_hold(row, HOLD),
        CallAction::End(fault, ids) => {
            let (counter, reason) = match fault {
                CallFault::Invalid(why) => ("invalid_calls", format!("tool call: {why}")),
                CallFault::Cut => ("cut_calls", "tool call: the request ends in it".to_owned()),
            };
            metrics::counter_add(counter, &[], 1);
            afterbay_plugin::warn!(request: row.request(), "{reason}");
            match on_violation {
                OnViolation::Report => verdicts.annotate(row, reason),
                OnViolation::Finish => verdicts.finish_with(row, reason, ids),
                OnViolation::Abort => verdicts.finish_with(row, FinishReason::Abort(reason), ids),
            }
        }
    }
}

/// Gives the verdict on a row of a request with a grammar. A row that is not free has a verdict on its tool calls,
/// which a note must not replace.
fn apply_judgement(row: Row<'_>, judgement: Judgement, is_free: bool, verdicts: &mut Verdicts) {
    let Judgement { action, kind, reason, allowed } = judgement;
    let counter = match kind {
        FindingKind::Violation => "violations",
        FindingKind::EarlyEnd => "early_ends",
        FindingKind::NotChecked => "not_checked",
    };
    metrics::counter_add(counter, &[], 1);
    afterbay_plugin::warn!(request: row.request(), "{reason}");
    match action {
        RowAction::Report if is_free => verdicts.annotate(row, reason),
        RowAction::Report => {}
        RowAction::Finish if allowed == row.ids().len() => verdicts.finish(row, reason),
        RowAction::Finish => verdicts.finish_with(row, reason, &row.ids()[..allowed]),
        RowAction::Abort => verdicts.finish(row, FinishReason::Abort(reason)),
    }
}

afterbay_plugin::export!(GrammarCheck);
