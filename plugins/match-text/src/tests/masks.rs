//! The matches of presets in whole texts, without the plugin around the scan.

use std::ops::Range;

use crate::automaton::Automaton;
use crate::patterns::Patterns;
use crate::scan::{Found, Scan, Text};
use crate::{Preset, Settings};

/// Finds the matches of some settings.
pub struct Masker {
    patterns: Patterns,
    automaton: Automaton,
}

struct Whole<'a>(&'a [u8]);

impl Text for Whole<'_> {
    fn text(&self, from: u64, to: u64) -> &[u8] {
        &self.0[from as usize..to as usize]
    }
}

impl Masker {
    pub fn new(presets: &[Preset]) -> Self {
        let presets: Vec<&str> = presets.iter().map(|preset| preset.name()).collect();
        Self::of_settings(&format!(r#"{{"presets": {presets:?}}}"#))
    }

    pub fn of_settings(settings: &str) -> Self {
        let settings: Settings = serde_json::from_str(settings).unwrap();
        let (patterns, nfa) = Patterns::new(&settings).unwrap();
        Self { patterns, automaton: Automaton::new(nfa) }
    }

    /// The matches: their bytes, and the names of their patterns.
    pub fn masks(&mut self, text: &str) -> Vec<(Range<usize>, String)> {
        let Self { patterns, automaton } = self;
        let (mut scan, mut found) = (Scan::new(automaton, true), Vec::<Found>::new());
        scan.read(automaton, patterns, text.as_bytes(), &Whole(text.as_bytes()), &mut found);
        scan.end(automaton, patterns, &Whole(text.as_bytes()), &mut found);
        found.sort_unstable_by_key(|found| (found.start, found.end));
        found
            .iter()
            .map(|found| (found.start as usize..found.end as usize, patterns.get(found.pattern).name.clone()))
            .collect()
    }
}
