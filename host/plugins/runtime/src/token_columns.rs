//! The columns of what an engine says of rows beside their tokens and counts: log-probabilities and versions of weights.

use crate::bindings::afterbay::plugin::types;
use afterbay_types::TopLogprobs;

/// The facts of one row's tokens, as the engine says them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowFacts {
    /// The logprob of each token. Empty: the row has none.
    pub logprobs: Vec<f32>,
    /// The most probable tokens in the place of each token. No place: the row has none.
    pub top_logprobs: TopLogprobs,
    /// The version of the weights that made the last token. Empty: the row does not say.
    pub weight_version: String,
}

impl RowFacts {
    /// Appends the facts of a later row of the request. A fact that one of the rows lacks is one that both lack, as when the
    /// engine's rows are joined.
    pub fn append(&mut self, later: RowFacts) {
        match self.logprobs.is_empty() || later.logprobs.is_empty() {
            true => self.logprobs.clear(),
            false => self.logprobs.extend(later.logprobs),
        }
        match self.top_logprobs.ends.is_empty() || later.top_logprobs.ends.is_empty() {
            true => self.top_logprobs = TopLogprobs::default(),
            false => self.top_logprobs.append(&later.top_logprobs),
        }
        self.weight_version = later.weight_version;
    }

    /// Removes the facts of tokens that a plugin replaced.
    pub fn forget_tokens(&mut self) {
        self.logprobs.clear();
        self.top_logprobs = TopLogprobs::default();
    }
}

/// The facts of some rows as columns.
#[derive(Clone, Debug, Default)]
pub struct TokenColumns {
    logprobs: Vec<f32>,
    has_logprobs: bool,
    top_logprobs: TopLogprobs,
    has_top_logprobs: bool,
    weight_versions: Vec<Box<str>>,
}

impl TokenColumns {
    /// Copies the columns of a batch.
    pub(crate) fn copy(columns: &types::Batch<'_>) -> TokenColumns {
        let versions = columns.weight_versions.unwrap_or_default();
        TokenColumns {
            logprobs: columns.logprobs.unwrap_or_default().to_vec(),
            has_logprobs: columns.logprobs.is_some(),
            top_logprobs: columns.top_logprobs.as_ref().map(owned).unwrap_or_default(),
            has_top_logprobs: columns.top_logprobs.is_some(),
            weight_versions: versions.iter().copied().map(Box::from).collect(),
        }
    }

    /// Appends the facts of a row of so many tokens.
    pub fn push(&mut self, tokens: usize, facts: &RowFacts) {
        if facts.logprobs.len() == tokens {
            self.has_logprobs |= tokens > 0;
            self.logprobs.extend_from_slice(&facts.logprobs);
        } else {
            self.logprobs.resize(self.logprobs.len() + tokens, f32::NAN);
        }
        let top = &mut self.top_logprobs;
        if facts.top_logprobs.ends.len() == tokens {
            self.has_top_logprobs |= tokens > 0;
            top.append(&facts.top_logprobs);
        } else {
            top.ends.resize(top.ends.len() + tokens, top.ids.len() as u32);
        }
        self.weight_versions.push(facts.weight_version.as_str().into());
    }

    /// The logprobs of all tokens. `None`: no row has any.
    pub fn logprobs(&self) -> Option<&[f32]> {
        self.has_logprobs.then_some(&self.logprobs)
    }

    /// The most probable tokens in the places of all tokens. `None`: no row has any.
    pub fn top_logprobs(&self) -> Option<types::TopLogprobs<'_>> {
        let TopLogprobs { ids, logprobs, ends } = &self.top_logprobs;
        self.has_top_logprobs.then_some(types::TopLogprobs { ids, logprobs, ends })
    }

    /// The version of the weights of each row. Empty: no row says it.
    pub fn weight_versions(&self) -> Vec<&str> {
        let versions = self.weight_versions.iter().map(|version| &**version);
        if versions.clone().all(str::is_empty) { Vec::new() } else { versions.collect() }
    }
}

fn owned(top: &types::TopLogprobs<'_>) -> TopLogprobs {
    TopLogprobs { ids: top.ids.to_vec(), logprobs: top.logprobs.to_vec(), ends: top.ends.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(logprobs: &[f32]) -> RowFacts {
        let ends: Vec<u32> = (1..=logprobs.len() as u32).collect();
        let top_logprobs = TopLogprobs { ids: vec![7; ends.len()], logprobs: logprobs.to_vec(), ends };
        RowFacts { logprobs: logprobs.to_vec(), top_logprobs, weight_version: String::new() }
    }

    #[test]
    fn a_row_without_logprobs_has_nan_beside_a_row_with_some() {
        let mut columns = TokenColumns::default();
        columns.push(2, &RowFacts::default());
        assert_eq!((columns.logprobs(), columns.top_logprobs()), (None, None));
        columns.push(1, &facts(&[-0.5]));
        columns.push(1, &RowFacts::default());
        let logprobs = columns.logprobs().unwrap();
        assert_eq!((logprobs.len(), logprobs[2]), (4, -0.5));
        assert!([0, 1, 3].iter().all(|at| logprobs[*at].is_nan()));
        assert_eq!(columns.top_logprobs().unwrap().ends, [0, 0, 1, 1]);
    }

    #[test]
    fn joined_rows_have_logprobs_only_if_all_have_them() {
        let mut joined = facts(&[-1.0]);
        joined.append(facts(&[-2.0]));
        assert_eq!(joined, RowFacts { weight_version: String::new(), ..facts(&[-1.0, -2.0]) });
        joined.append(RowFacts::default());
        assert_eq!(joined, RowFacts::default());
    }
}
