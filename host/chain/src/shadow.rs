//! Plugins in the shadow: they see what the live one sees, and what they say is compared and counted, not done.
//!
//! Owns the comparison. Where a shadow looks from, and when it becomes live, is the chain's.

use afterbay_events::StreamTelemetry;
use afterbay_events::event::ShadowDiffers;
use afterbay_events::{Compared, Name, PluginCounters};
use afterbay_runtime::{Action, Ending, Replacement, TokenId, Verdict};

/// Ids of a verdict that are logged where two differ, at the level debug.
const IDS_SHOWN: usize = 8;

/// Compares what a shadow says of some rows with what the live plugin says; both sorted by row, one a row. `rid` names the
/// request of a row.
pub fn compare<'r>(
    shadow: &Name,
    said: &[Verdict],
    live: &[Verdict],
    counters: &PluginCounters,
    telemetry: &StreamTelemetry,
    rid: impl Fn(u32) -> Option<&'r str>,
) {
    let (mut said, mut live) = (said.iter().peekable(), live.iter().peekable());
    loop {
        let row = match (said.peek(), live.peek()) {
            (None, None) => return,
            (Some(one), None) | (None, Some(one)) => one.row,
            (Some(shadow), Some(live)) => shadow.row.min(live.row),
        };
        let of_shadow = said.next_if(|verdict| verdict.row == row).map(|verdict| &verdict.action);
        let of_live = live.next_if(|verdict| verdict.row == row).map(|verdict| &verdict.action);
        let compared = match (of_shadow, of_live) {
            (Some(shadow), Some(live)) if shadow == live => Compared::Same,
            (Some(_), Some(_)) => Compared::Other,
            (Some(_), None) => Compared::OnlyShadow,
            _ => Compared::OnlyLive,
        };
        counters.compared.add(compared, 1);
        if compared != Compared::Same {
            // What somebody's model said is for nobody to read but who asks for it.
            tracing::debug!(
                target: "afterbay",
                "plugin {shadow:?}: request {:?}: in the shadow says {}, live says {}",
                rid(row).unwrap_or_default(),
                ids(of_shadow),
                ids(of_live),
            );
            telemetry.publish(ShadowDiffers {
                stream: telemetry.stream.clone(),
                plugin: shadow.clone(),
                rid: rid(row).unwrap_or_default().to_owned(),
                live: in_words(of_live),
                shadow: in_words(of_shadow),
            });
        }
    }
}

/// A verdict without its ids: events are logged at the level info.
fn in_words(action: Option<&Action>) -> String {
    match action {
        None => "nothing".to_owned(),
        Some(Action::Replace(Replacement { ids, .. })) => format!("replace by {} ids", ids.len()),
        Some(Action::Drop(reason)) => format!("drop {reason:?}"),
        Some(Action::Finish(matched)) => format!("finish {matched:?}"),
        Some(Action::FinishAs(Ending { matched, instead })) => {
            format!("finish {matched:?} as {} ids", instead.ids.len())
        }
        Some(Action::Abort(message)) => format!("abort {message:?}"),
        Some(Action::Annotate(note)) => format!("annotate {note:?}"),
        Some(Action::Route(sink)) => format!("route to {sink:?}"),
        Some(Action::SkipDetokenization) => "skip-detokenization".to_owned(),
        Some(Action::Hold(millis)) => format!("hold for {millis} ms"),
        Some(Action::Release) => "release".to_owned(),
        Some(Action::ReleaseAs(Replacement { ids, .. })) => format!("release as {} ids", ids.len()),
        Some(Action::ReleaseAndHold(millis)) => format!("release, and hold for {millis} ms"),
    }
}

/// The ids of a verdict, its first [`IDS_SHOWN`].
fn ids(action: Option<&Action>) -> String {
    let ids: &[TokenId] = match action {
        Some(Action::Replace(replacement) | Action::ReleaseAs(replacement)) => &replacement.ids,
        Some(Action::FinishAs(ending)) => &ending.instead.ids,
        _ => &[],
    };
    match ids.len() > IDS_SHOWN {
        true => format!("{} ids, {:?}…", ids.len(), &ids[..IDS_SHOWN]),
        false => format!("{ids:?}"),
    }
}
