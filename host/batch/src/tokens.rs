//! The tokens of a row, by where the ledger counts them.

/// What came for a row, by where it is booked if the row goes on as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedTokens {
    pub rows: u64,
    pub forwarded: u64,
    pub replaced: u64,
    pub dropped: u64,
}

impl ReceivedTokens {
    /// One row, as it is.
    pub fn row(tokens: u32) -> ReceivedTokens {
        ReceivedTokens { rows: 1, forwarded: tokens.into(), ..ReceivedTokens::default() }
    }

    /// Tokens that came.
    pub fn tokens(self) -> u64 {
        self.forwarded + self.replaced + self.dropped
    }

    /// All of it is replaced, but what was dropped.
    pub fn to_replaced(self) -> ReceivedTokens {
        ReceivedTokens { forwarded: 0, replaced: self.forwarded + self.replaced, ..self }
    }

    /// All of it is dropped.
    pub fn to_dropped(self) -> ReceivedTokens {
        ReceivedTokens { rows: self.rows, forwarded: 0, replaced: 0, dropped: self.tokens() }
    }

    pub fn and(self, other: ReceivedTokens) -> ReceivedTokens {
        ReceivedTokens {
            rows: self.rows + other.rows,
            forwarded: self.forwarded + other.forwarded,
            replaced: self.replaced + other.replaced,
            dropped: self.dropped + other.dropped,
        }
    }
}
