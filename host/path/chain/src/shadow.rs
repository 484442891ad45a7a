//! Shadows: plugins that see the columns of a live plugin, and whose verdicts are compared and counted, but not applied.
//!
//! This module compares. The chain decides when it calls a shadow, and when a shadow becomes live.

use afterbay_events::{Compared, Name, PluginCounters};
use afterbay_runtime::{Action, TokenId, Verdict};

/// Ids of a verdict in the debug log.
const IDS_SHOWN: usize = 8;

/// Compares the verdicts of a shadow with those of the live plugin. Both are sorted by row and have one verdict per row.
/// Calls `differs` with each row on which they differ, the live verdict and the shadow's. `rid` names the request of a row.
pub fn compare<'r>(
    shadow: &Name,
    of_shadow: &[Verdict],
    of_live: &[Verdict],
    counters: &PluginCounters,
    rid: impl Fn(u32) -> Option<&'r str>,
    mut differs: impl FnMut(u32, Option<&Action>, Option<&Action>),
) {
    let (mut of_shadow, mut of_live) = (of_shadow.iter().peekable(), of_live.iter().peekable());
    loop {
        let row = match (of_shadow.peek(), of_live.peek()) {
            (None, None) => return,
            (Some(one), None) | (None, Some(one)) => one.row,
            (Some(shadow), Some(live)) => shadow.row.min(live.row),
        };
        let shadow_action = of_shadow.next_if(|verdict| verdict.row == row).map(|verdict| &verdict.action);
        let live_action = of_live.next_if(|verdict| verdict.row == row).map(|verdict| &verdict.action);
        let compared = match (shadow_action, live_action) {
            (Some(shadow), Some(live)) if shadow == live => Compared::Same,
            (Some(_), Some(_)) => Compared::Other,
            (Some(_), None) => Compared::OnlyShadow,
            _ => Compared::OnlyLive,
        };
        counters.rows_compared.add(compared, 1);
        if compared != Compared::Same {
            // Ids are a user's text: they are only logged at the level debug.
            tracing::debug!(
                target: "afterbay",
                "plugin {shadow:?}: request {:?}: the shadow's ids {}, the live ids {}",
                rid(row).unwrap_or_default(),
                ids(shadow_action),
                ids(live_action),
            );
            differs(row, live_action, shadow_action);
        }
    }
}

/// A verdict without its ids, for an event, which is logged at the level info, and for the plugin's history.
pub fn in_words(action: Option<&Action>) -> String {
    let Some(action) = action else { return "nothing".to_owned() };
    let text = action.text().map(|text| format!(" {text:?}")).unwrap_or_default();
    let rest = match action {
        Action::Hold(millis) | Action::ReleaseAndHold(millis) => format!(" for {millis} ms"),
        action => ids_of(action).map(|ids| format!(" by {} ids", ids.len())).unwrap_or_default(),
    };
    format!("{}{text}{rest}", action.kind())
}

/// The ids of a verdict that replaces tokens.
fn ids_of(action: &Action) -> Option<&[TokenId]> {
    action.replacement().map(|replacement| &replacement.ids[..])
}

/// The first [`IDS_SHOWN`] ids of a verdict.
fn ids(action: Option<&Action>) -> String {
    let ids = action.and_then(ids_of).unwrap_or_default();
    match ids.len() > IDS_SHOWN {
        true => format!("{} ids, {:?}…", ids.len(), &ids[..IDS_SHOWN]),
        false => format!("{ids:?}"),
    }
}
