//! Notes the text of each row, decoded by the model's tokenizer, and the ids of the text in its settings.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts, missing, tokenizer};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Tokens {
    text: String,
}

impl Plugin for Tokens {
    type Settings = Tokens;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(settings: Tokens) -> Result<Self, ConfigureError> {
        match tokenizer::size() {
            0 => Err(missing("the tokenizer is empty")),
            _ => Ok(settings),
        }
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        let ids = tokenizer::encode(&self.text);
        let same = ids.as_deref().map(|ids| tokenizer::decode(ids) == self.text.as_bytes());
        let first: Vec<usize> = tokenizer::token_bytes(0, 3).iter().map(Vec::len).collect();
        for row in batch {
            let text = String::from_utf8_lossy(&tokenizer::decode(row.ids())).into_owned();
            verdicts
                .annotate(row, format!("{text:?} {same:?} {} {}", first.len(), tokenizer::special().len()));
        }
    }
}

afterbay_plugin::export!(Tokens);
