//! How much is kept of what a scheduler was asked for.

/// The part of a request's record that the journal gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordDetail {
    /// All of it.
    #[default]
    Full,
    /// All but the ids of the prompt.
    WithoutIds,
    /// The rid and the attributes: `lora`, `session`, `resumable`.
    None,
}

impl RecordDetail {
    /// The details with their words in a configuration.
    pub const WORDS: [(&'static str, RecordDetail); 3] = [
        ("full", RecordDetail::Full),
        ("without-ids", RecordDetail::WithoutIds),
        ("none", RecordDetail::None),
    ];
}
