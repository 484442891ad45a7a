//! The counter of each verdict.

use afterbay_events as events;
use afterbay_runtime::Action;

/// How a verdict is counted.
pub fn label(action: &Action) -> events::Verdict {
    match action {
        Action::Replace(_) => events::Verdict::Replace,
        Action::Drop(_) => events::Verdict::Drop,
        Action::Finish(_) => events::Verdict::Finish,
        Action::FinishAs(_) => events::Verdict::FinishAs,
        Action::Abort(_) => events::Verdict::Abort,
        Action::Annotate(_) => events::Verdict::Annotate,
        Action::Route(_) => events::Verdict::Route,
        Action::SkipDetokenization => events::Verdict::SkipDetokenization,
        Action::Hold(_) => events::Verdict::Hold,
        Action::Release => events::Verdict::Release,
        Action::ReleaseAs(_) => events::Verdict::ReleaseAs,
        Action::ReleaseAndHold(_) => events::Verdict::ReleaseAndHold,
    }
}
