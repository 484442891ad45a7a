//! The rules by which rows of one request become one row for a reader.

use afterbay_text::Vocabulary;
use afterbay_wire::BatchKind;

/// How rows are joined for a reader.
#[derive(Clone, Debug, Default)]
pub struct Joins {
    /// The positions at which a joined row may end.
    pub ends: JoinEnds,
    /// The rows that are sent as they came.
    pub single: SingleRows,
}

impl Joins {
    /// Whether any rows are joined.
    pub fn is_any(&self) -> bool {
        !matches!(self.ends, JoinEnds::Nowhere) && !matches!(self.single, SingleRows::All)
    }

    /// Whether some rows are sent as they came.
    pub fn has_single_rows(&self) -> bool {
        !matches!(self.single, SingleRows::None)
    }
}

impl From<JoinEnds> for Joins {
    /// For a reader that parses no tool calls, or reads them right from any rows.
    fn from(ends: JoinEnds) -> Joins {
        Joins { ends, single: SingleRows::None }
    }
}

/// The rows that are sent as they came, because the reader's parser of tool calls needs single tokens.
#[derive(Clone, Debug, Default)]
pub enum SingleRows {
    /// No rows: the parser reads any rows right, or there is none.
    #[default]
    None,
    /// A request's rows from its first tool call on, which these tokens of the model show.
    FromToolCall(Vocabulary),
    /// All rows: the reader may need single tokens, and the model's tokens are unknown.
    All,
}

/// The positions at which a joined row may end.
#[derive(Clone, Debug, Default)]
pub enum JoinEnds {
    /// Nowhere, so rows are not joined: the sink is a detokenizer, and its tokenizer is unknown.
    Nowhere,
    /// Only where the text is whole: the sink is a detokenizer.
    WhereTextIsWhole(Vocabulary),
    /// Anywhere: the sink reads ids or finished text.
    #[default]
    Anywhere,
}

impl JoinEnds {
    /// The tokenizer that decides where a joined row of this kind may end. `None` if the text does not matter.
    pub fn vocabulary(&self, kind: BatchKind) -> Option<&Vocabulary> {
        match self {
            JoinEnds::WhereTextIsWhole(vocabulary) if kind == BatchKind::TokenId => Some(vocabulary),
            _ => None,
        }
    }
}
