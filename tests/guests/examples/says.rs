//! Gives the verdicts that the ids of the batch spell (see `guests::spelled`), also those that break the contract.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{Action, Columns, ConfigureError, Ending, FinishReason, Replacement, Verdict};
use guests::spelled::{self, Spelled, Tokens, spelled};

struct Says;

impl Guest for Says {
    fn describe() -> Description {
        Description { columns: Columns::OUTPUT_IDS, ..guests::description("says") }
    }

    fn configure(_: String) -> Result<(), ConfigureError> {
        Ok(())
    }

    fn process(batch: Batch) -> Vec<Verdict> {
        spelled(&batch.output_ids).into_iter().map(verdict).collect()
    }

    guests::silent_calls!();
}

fn verdict(Spelled { row, action }: Spelled) -> Verdict {
    let replacement = |Tokens { ids, text }| Replacement { ids, text };
    let finish = |reason, tokens: Option<Tokens>| {
        Action::Finish(Ending { reason, replacement: tokens.map(replacement) })
    };
    let action = match action {
        spelled::Action::Replace(tokens) => Action::Replace(replacement(tokens)),
        spelled::Action::Drop(text) => Action::Drop(text),
        spelled::Action::Stop(text, tokens) => finish(FinishReason::Stop(text), tokens),
        spelled::Action::Length(tokens) => finish(FinishReason::Length, tokens),
        spelled::Action::Abort(text, tokens) => finish(FinishReason::Abort(text), tokens),
        spelled::Action::Annotate(text) => Action::Annotate(text),
        spelled::Action::Route(sink) => Action::Route(sink),
        spelled::Action::SkipText => Action::SkipText,
        spelled::Action::Hold(millis) => Action::Hold(millis),
        spelled::Action::Release => Action::Release,
        spelled::Action::ReleaseAs(tokens) => Action::ReleaseAs(replacement(tokens)),
        spelled::Action::ReleaseAndHold(millis) => Action::ReleaseAndHold(millis),
    };
    Verdict { row, action }
}

guests::export_raw!(Says);
