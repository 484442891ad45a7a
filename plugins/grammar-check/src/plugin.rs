//! The plugin: it turns judgements into log lines, notes in the journal, metrics and verdicts.

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, FinishKind, FinishReason, Opened, Plugin, RequestId, TokenId,
    Verdicts, metrics, missing, tokenizer,
};

use crate::{FindingKind, GrammarCheck, Judgement, RowAction, Settings, Tokenizer};

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
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::FINISHED);
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
            let Some(judgement) = self.row(row.request(), row.ids(), finish) else { continue };
            let Judgement { action, kind, reason, allowed } = judgement;
            let counter = match kind {
                FindingKind::Violation => "violations",
                FindingKind::EarlyEnd => "early_ends",
                FindingKind::NotChecked => "not_checked",
            };
            metrics::counter_add(counter, &[], 1);
            afterbay_plugin::warn!(request: row.request(), "{reason}");
            match action {
                RowAction::Report => verdicts.annotate(row, reason),
                RowAction::Finish if allowed == row.ids().len() => verdicts.finish(row, reason),
                RowAction::Finish => verdicts.finish_with(row, reason, &row.ids()[..allowed]),
                RowAction::Abort => verdicts.finish(row, FinishReason::Abort(reason)),
            }
        }
        self.end_batch();
    }

    fn closed(&mut self, request: RequestId) {
        self.close(request);
    }
}

afterbay_plugin::export!(GrammarCheck);
