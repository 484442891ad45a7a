//! The plugin: what is found of a request goes to the log, the journal, the figures and, if it is to end, into a verdict.

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, FinishKind, Opened, Plugin, RequestId, TokenId, Verdicts, metrics,
    missing, tokenizer,
};

use crate::{Action, GrammarCheck, Judgement, Kind, Settings, Tokenizer};

/// The stream's model, as the host has it.
struct Model;

impl Tokenizer for Model {
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
        Self::new(&settings, &Model)
    }

    fn opened(&mut self, request: &Opened) {
        self.open(request);
    }

    fn changed(&mut self, request: RequestId) {
        if let Some(said) = GrammarCheck::changed(self, request) {
            afterbay_plugin::warn!(request: request, "{said}");
        }
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        self.begin_batch();
        self.expect(batch.len());
        for row in batch {
            let finish = row.finish().unwrap_or(FinishKind::Running);
            let Some(judged) = self.row(row.request(), row.ids(), finish) else { continue };
            let Judgement { action, kind, reason, allowed } = judged;
            let counter = match kind {
                Kind::Violation => "violations",
                Kind::EarlyEnd => "early_ends",
                Kind::GivenUp => "not_checked",
            };
            metrics::counter_add(counter, 1);
            afterbay_plugin::warn!(request: row.request(), "{reason}");
            match action {
                Action::Report => verdicts.annotate(row, reason),
                Action::Finish if allowed == row.ids().len() => verdicts.finish(row, reason),
                Action::Finish => verdicts.finish_as(row, reason, &row.ids()[..allowed]),
                Action::Abort => verdicts.abort(row, reason),
            }
        }
        self.end_batch();
    }

    fn closed(&mut self, request: RequestId) {
        self.close(request);
    }
}

afterbay_plugin::export!(GrammarCheck);
