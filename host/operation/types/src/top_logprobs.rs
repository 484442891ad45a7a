//! The candidates of tokens.

/// The most probable tokens in the places of some tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogprobs {
    /// The ids of all places, one place after another, as the engine orders them.
    pub ids: Vec<i64>,
    /// The natural logarithm of the probability of each of `ids`.
    pub logprobs: Vec<f32>,
    /// The end of each place in `ids`.
    pub ends: Vec<u32>,
}

impl TopLogprobs {
    /// Appends the places of later tokens.
    pub fn append(&mut self, later: &TopLogprobs) {
        let before = self.ids.len() as u32;
        self.ids.extend_from_slice(&later.ids);
        self.logprobs.extend_from_slice(&later.logprobs);
        self.ends.extend(later.ends.iter().map(|end| before + end));
    }

    /// The candidates of each place.
    pub fn places(&self) -> impl Iterator<Item = impl Iterator<Item = (i64, f32)>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| {
            let place = start as usize..*end as usize;
            self.ids[place.clone()].iter().copied().zip(self.logprobs[place].iter().copied())
        })
    }

    /// Ends the place of a token.
    pub fn end_place(&mut self) {
        self.ends.push(self.ids.len() as u32);
    }

    /// Removes what was appended since there were so many places.
    pub fn truncate(&mut self, places: usize) {
        self.ends.truncate(places);
        let length = self.ends.last().map_or(0, |end| *end as usize);
        self.ids.truncate(length);
        self.logprobs.truncate(length);
    }
}
