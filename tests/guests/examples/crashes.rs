//! Ends each call in one of the ways that a mistake of an author ends it. Its tests find the line of each mistake.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts};

/// The settings.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The mistake.
    by: Mistake,
}

#[derive(Clone, Copy, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Mistake {
    Index,
    Divide,
    Unwrap,
    Library,
    Inline,
}

struct Crashes(Mistake);

impl Plugin for Crashes {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        Ok(Self(settings.by))
    }

    fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
        for row in batch.rows() {
            crash(self.0, row.ids()); // mistake: called
        }
    }
}

#[inline(never)]
fn crash(by: Mistake, ids: &[i64]) {
    let zero = ids.len() as i64 - 1;
    let result = match by {
        Mistake::Index => ids[7 + zero as usize], // mistake: index
        Mistake::Divide => 7 / zero,              // mistake: divide
        Mistake::Unwrap => *ids.get(7).unwrap(),  // mistake: unwrap
        Mistake::Library => ids.iter().step_by(zero as usize).sum(), // mistake: library
        Mistake::Inline => inlined(ids),          // mistake: outside
    };
    std::hint::black_box(result);
}

#[inline(always)]
fn inlined(ids: &[i64]) -> i64 {
    ids[ids.len() + 2] // mistake: inline
}

afterbay_plugin::export!(Crashes);
