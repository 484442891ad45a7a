//! Tokens received for a row, split by how the ledger counts the tokens.

/// Rows received, and the tokens in them, split by how the ledger counts each token once the rows are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedTokens {
    /// Rows received.
    pub rows: u64,
    /// Tokens that stay as they were received.
    pub forwarded: u64,
    /// Tokens that a plugin replaced with other tokens.
    pub replaced: u64,
    /// Tokens that a plugin dropped.
    pub dropped: u64,
}

impl ReceivedTokens {
    /// One unchanged row of this many tokens.
    pub fn of_row(tokens: u32) -> ReceivedTokens {
        ReceivedTokens { rows: 1, forwarded: tokens.into(), ..ReceivedTokens::default() }
    }

    /// All tokens received.
    pub fn total(self) -> u64 {
        self.forwarded + self.replaced + self.dropped
    }

    /// Counts the tokens as replaced, except those that are dropped.
    pub fn to_replaced(self) -> ReceivedTokens {
        ReceivedTokens { forwarded: 0, replaced: self.forwarded + self.replaced, ..self }
    }

    /// Counts all tokens as dropped.
    pub fn to_dropped(self) -> ReceivedTokens {
        ReceivedTokens { rows: self.rows, forwarded: 0, replaced: 0, dropped: self.total() }
    }

    /// The sum of two counts.
    pub fn plus(self, other: ReceivedTokens) -> ReceivedTokens {
        ReceivedTokens {
            rows: self.rows + other.rows,
            forwarded: self.forwarded + other.forwarded,
            replaced: self.replaced + other.replaced,
            dropped: self.dropped + other.dropped,
        }
    }
}
