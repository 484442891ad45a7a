//! The text of a stream: the bytes of each row, and the part of a request's text that waits for a decision.
//!
//! [`Vocabulary`] gives the text of a row as pieces of bytes. The same code reads a stream before the
//! detokenizer, where a piece is a token, and after the detokenizer, where a piece is the row's text. A piece
//! may end inside a character.
//!
//! [`SuffixHold`] is for guards that must not let a part of a match pass. The plugin names the position from
//! which the text may still become a match, and the replacements for the matches before this position. The
//! suffix hold turns these positions into verdicts: it holds, releases, replaces or withholds.
//!
//! # Example
//!
//! A guard that replaces each digit by `#`, and that may release a digit only with the character after it:
//!
//! ```
//! use std::time::Duration;
//!
//! use afterbay_plugin::text::{Edit, SuffixHold, Vocabulary};
//! use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Opened, Plugin, RequestId, Requests, Verdicts};
//!
//! struct HideDigits {
//!     vocabulary: Vocabulary,
//!     requests: Requests<SuffixHold>,
//! }
//!
//! impl Plugin for HideDigits {
//!     type Settings = NoSettings;
//!     const COLUMNS: Columns = SuffixHold::COLUMNS;
//!
//!     fn new(_: NoSettings) -> Result<Self, ConfigureError> {
//!         Ok(Self { vocabulary: Vocabulary::load()?, requests: Requests::new() })
//!     }
//!
//!     fn opened(&mut self, request: &Opened) {
//!         self.requests.insert(request.request, SuffixHold::new());
//!     }
//!
//!     fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
//!         for row in batch {
//!             let Some(hold) = self.requests.get_mut(row.request()) else { continue };
//!             hold.add(row, &self.vocabulary);
//!             // Positions count the bytes of the request's text.
//!             let digits = (hold.sent()..hold.end()).filter(|at| hold.byte(*at).is_some_and(|b| b.is_ascii_digit()));
//!             let digits: Vec<u64> = digits.collect();
//!             // A digit at the end waits for the next row. The last row of a request keeps nothing.
//!             let keep_from = digits.last().filter(|last| *last + 1 == hold.end() && !row.is_last());
//!             let keep_from = keep_from.copied().unwrap_or(hold.end());
//!             let edits = digits.iter().filter(|at| **at < keep_from).map(|&at| Edit::new(at..at + 1, "#"));
//!             let edits: Vec<Edit<'_>> = edits.collect();
//!             hold.settle(row, keep_from, &edits, Duration::from_secs(60), &self.vocabulary, verdicts);
//!         }
//!     }
//!
//!     fn closed(&mut self, request: RequestId) {
//!         self.requests.remove(request);
//!     }
//! }
//!
//! use afterbay_plugin::FinishKind;
//! use afterbay_plugin::testing::{Harness, Readers, TestRow};
//!
//! let tokens = ["a1", "2 ", "end", "#"].map(|token| Some(token.as_bytes().to_vec()));
//! let bytes = (0..=255).map(|byte| Some(vec![byte]));
//! let plugin = Harness::<HideDigits>::with_tokens("{}", tokens.into_iter().chain(bytes).collect()).unwrap();
//! let mut readers = Readers::new(plugin);
//! readers.open(7);
//! readers.process(&[TestRow::new(7).ids([0])]);
//! assert_eq!(readers.text(7), "", "the row ends in a digit and waits");
//! readers.process(&[TestRow::new(7).ids([1])]);
//! assert_eq!(readers.text(7), "a## ");
//! readers.process(&[TestRow::new(7).ids([2]).finish(FinishKind::Stop)]);
//! assert_eq!(readers.text(7), "a## end");
//! ```

mod suffix;
mod vocabulary;

pub use suffix::{Edit, SuffixHold};
pub use vocabulary::Vocabulary;
