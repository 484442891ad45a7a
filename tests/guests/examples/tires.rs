//! Panics at the start of the second batch of an instance. Notes beside each row whether all tokens of the
//! request are known: those before the instance and those that it saw.

use std::collections::HashMap;

use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Opened, Plugin, RequestId, Verdicts};

struct Tires {
    batches: u32,
    tokens: HashMap<RequestId, (u64, bool)>,
}

impl Plugin for Tires {
    type Settings = NoSettings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::COMPLETION_TOKENS);

    fn new(_: NoSettings) -> Result<Self, ConfigureError> {
        Ok(Self { batches: 0, tokens: HashMap::new() })
    }

    fn opened(&mut self, opened: &Opened) {
        self.tokens.insert(opened.request, (opened.received_tokens, opened.resumed));
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        self.batches += 1;
        assert!(self.batches < 2, "tired");
        for row in batch {
            let (tokens, resumed) = self.tokens.get_mut(&row.request()).expect("it was opened");
            *tokens += row.ids().len() as u64;
            let is_all = Some(*tokens) == row.completion_tokens();
            verdicts.annotate(row, format!("{} {}", if is_all { "all" } else { "not all" }, *resumed));
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.tokens.remove(&request);
    }
}

afterbay_plugin::export!(Tires);
