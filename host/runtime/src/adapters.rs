//! The exports of a component of each version, and the conversions of an earlier version's arguments and answers.
//!
//! Outside of this file there are only the types of the present version. The imports have the same types in both versions,
//! but for `metrics` (`guest.rs`).

use wasmtime::component::InstancePre;
use wasmtime::{AsContextMut, Store};

use crate::bindings::afterbay::plugin::types::{Calls, Description};
use crate::bindings::exports::afterbay::plugin::plugin::{
    Answer, BadSetting, ConfigureError, RequestVerdict, StateError,
};
use crate::bindings::{Transform, TransformPre, v0_1};
use crate::columns::{ColumnSet, Columns, FinishKind, Opened, RequestId};
use crate::guest::Guest;
use crate::verdict::{Action, Ending, FinishReason, IdShape, Replacement, Verdict};
use crate::version::ContractVersion;

use v0_1::afterbay::plugin::types as old;
use v0_1::exports::afterbay::plugin::plugin as old_plugin;

/// A component of one version with its imports linked.
pub(crate) enum Linked {
    V1_0(TransformPre<Guest>),
    V0_1(v0_1::TransformPre<Guest>),
}

impl Linked {
    /// Checks the types of the exports.
    pub(crate) fn new(version: ContractVersion, pre: InstancePre<Guest>) -> wasmtime::Result<Linked> {
        Ok(match version {
            ContractVersion::V1_0 => Linked::V1_0(TransformPre::new(pre)?),
            ContractVersion::V0_1 => Linked::V0_1(v0_1::TransformPre::new(pre)?),
        })
    }

    pub(crate) fn version(&self) -> ContractVersion {
        match self {
            Linked::V1_0(_) => ContractVersion::V1_0,
            Linked::V0_1(_) => ContractVersion::V0_1,
        }
    }

    pub(crate) fn instantiate(&self, store: &mut Store<Guest>) -> wasmtime::Result<World> {
        Ok(match self {
            Linked::V1_0(pre) => World::V1_0(pre.instantiate(store)?),
            Linked::V0_1(pre) => World::V0_1(pre.instantiate(store)?),
        })
    }
}

/// The exports of an instance of one version.
pub(crate) enum World {
    V1_0(Transform),
    V0_1(v0_1::Transform),
}

/// Calls an export that has the same types in every version.
macro_rules! same {
    ($world:expr, $guest:ident => $call:expr) => {
        match $world {
            World::V1_0(world) => {
                let $guest = world.afterbay_plugin_plugin();
                $call
            }
            World::V0_1(world) => {
                let $guest = world.afterbay_plugin_plugin();
                $call
            }
        }
    };
}

impl World {
    pub(crate) fn describe(&self, store: impl AsContextMut<Data = Guest>) -> wasmtime::Result<Description> {
        match self {
            World::V1_0(world) => world.afterbay_plugin_plugin().call_describe(store),
            World::V0_1(world) => world.afterbay_plugin_plugin().call_describe(store).map(Description::from),
        }
    }

    pub(crate) fn configure(
        &self,
        store: impl AsContextMut<Data = Guest>,
        settings: &str,
    ) -> wasmtime::Result<Result<(), ConfigureError>> {
        match self {
            World::V1_0(world) => world.afterbay_plugin_plugin().call_configure(store, settings),
            World::V0_1(world) => {
                let answer = world.afterbay_plugin_plugin().call_configure(store, settings)?;
                Ok(answer.map_err(ConfigureError::from))
            }
        }
    }

    pub(crate) fn open(
        &self,
        store: impl AsContextMut<Data = Guest>,
        requests: &[Opened<'_>],
    ) -> wasmtime::Result<()> {
        match self {
            World::V1_0(world) => world.afterbay_plugin_plugin().call_open(store, requests),
            World::V0_1(world) => {
                let requests: Vec<_> = requests.iter().map(old::Opened::from).collect();
                world.afterbay_plugin_plugin().call_open(store, &requests)
            }
        }
    }

    pub(crate) fn changed(
        &self,
        store: impl AsContextMut<Data = Guest>,
        requests: &[RequestId],
    ) -> wasmtime::Result<()> {
        same!(self, guest => guest.call_changed(store, requests))
    }

    /// A plugin of 0.1 does not get the time of the batch.
    pub(crate) fn process(
        &self,
        store: impl AsContextMut<Data = Guest>,
        batch: Columns<'_>,
    ) -> wasmtime::Result<Vec<Verdict>> {
        match self {
            World::V1_0(world) => world.afterbay_plugin_plugin().call_process(store, batch),
            World::V0_1(world) => {
                // The finish reasons are a column of another type with the same values.
                let finished: Vec<_> =
                    batch.finished.iter().map(|kind| old::FinishKind::from(*kind)).collect();
                let batch = old::Batch {
                    requests: batch.requests,
                    output_ids: batch.output_ids,
                    output_ends: batch.output_ends,
                    completion_tokens: batch.completion_tokens,
                    finished: &finished,
                    texts: batch.texts,
                    waiting: batch.waiting,
                };
                let verdicts = world.afterbay_plugin_plugin().call_process(store, batch)?;
                Ok(verdicts.into_iter().map(Verdict::from).collect())
            }
        }
    }

    pub(crate) fn pressure(&self, store: impl AsContextMut<Data = Guest>) -> wasmtime::Result<()> {
        same!(self, guest => guest.call_pressure(store))
    }

    /// A plugin of 0.1 makes no calls and gets no answers.
    pub(crate) fn answered(
        &self,
        store: impl AsContextMut<Data = Guest>,
        answers: &[Answer],
    ) -> wasmtime::Result<Vec<RequestVerdict>> {
        match self {
            World::V1_0(world) => world.afterbay_plugin_plugin().call_answered(store, answers),
            World::V0_1(_) => Ok(Vec::new()),
        }
    }

    pub(crate) fn close(
        &self,
        store: impl AsContextMut<Data = Guest>,
        requests: &[RequestId],
    ) -> wasmtime::Result<()> {
        same!(self, guest => guest.call_close(store, requests))
    }

    pub(crate) fn export_state(&self, store: impl AsContextMut<Data = Guest>) -> wasmtime::Result<Vec<u8>> {
        same!(self, guest => guest.call_export_state(store))
    }

    pub(crate) fn import_state(
        &self,
        store: impl AsContextMut<Data = Guest>,
        version: &str,
        state: &[u8],
    ) -> wasmtime::Result<Result<(), StateError>> {
        match self {
            World::V1_0(world) => world.afterbay_plugin_plugin().call_import_state(store, version, state),
            World::V0_1(world) => {
                let answer = world.afterbay_plugin_plugin().call_import_state(store, version, state)?;
                Ok(answer.map_err(StateError::from))
            }
        }
    }
}

/// Converts an enum or a set of flags of 0.1 to the type of the same name and back. The values have the same names.
macro_rules! same_values {
    ($new:ty, $old:ty: $($value:ident),*) => {
        impl From<$old> for $new {
            fn from(old: $old) -> $new {
                match old {
                    $(<$old>::$value => <$new>::$value,)*
                }
            }
        }
    };
}

same_values!(IdShape, old::IdShape: Delta, Cumulative);
same_values!(StateError, old_plugin::StateError: UnknownVersion, Corrupt);
same_values!(old::FinishKind, FinishKind: Running, Stop, Length, Abort, Other);

impl From<old::Description> for Description {
    fn from(old: old::Description) -> Description {
        let old::Description { name, version, settings_schema, columns, wants, writes } = old;
        Description {
            name,
            version,
            settings_schema,
            columns: columns_of(columns),
            wants: calls_of(wants),
            writes: writes.into(),
        }
    }
}

fn columns_of(columns: old::Columns) -> ColumnSet {
    let known = [
        (old::Columns::OUTPUT_IDS, ColumnSet::OUTPUT_IDS),
        (old::Columns::COMPLETION_TOKENS, ColumnSet::COMPLETION_TOKENS),
        (old::Columns::FINISHED, ColumnSet::FINISHED),
        (old::Columns::TEXTS, ColumnSet::TEXTS),
        (old::Columns::WAITING, ColumnSet::WAITING),
    ];
    let wanted = known.into_iter().filter(|(old, _)| columns.contains(*old));
    wanted.fold(ColumnSet::empty(), |all, (_, column)| all | column)
}

fn calls_of(calls: old::Calls) -> Calls {
    let known = [
        (old::Calls::PRESSURE, Calls::PRESSURE),
        (old::Calls::CHANGED, Calls::CHANGED),
        (old::Calls::STATE, Calls::STATE),
    ];
    let wanted = known.into_iter().filter(|(old, _)| calls.contains(*old));
    wanted.fold(Calls::empty(), |all, (_, call)| all | call)
}

impl From<old_plugin::ConfigureError> for ConfigureError {
    fn from(old: old_plugin::ConfigureError) -> ConfigureError {
        match old {
            old_plugin::ConfigureError::Setting(old_plugin::BadSetting { pointer, message }) => {
                ConfigureError::Setting(BadSetting { pointer, message })
            }
            old_plugin::ConfigureError::Missing(what) => ConfigureError::Missing(what),
        }
    }
}

impl<'a> From<&Opened<'a>> for old::Opened<'a> {
    fn from(opened: &Opened<'a>) -> old::Opened<'a> {
        let Opened { request, rid, http_worker_ipc, sink, prompt_tokens, received_tokens, resumed } = *opened;
        old::Opened { request, rid, http_worker_ipc, sink, prompt_tokens, received_tokens, resumed }
    }
}

impl From<old::Replacement> for Replacement {
    fn from(old: old::Replacement) -> Replacement {
        Replacement { ids: old.ids, text: old.text }
    }
}

impl From<old::Verdict> for Verdict {
    /// `finish`, `finish-as` and `abort` are one action now.
    fn from(old: old::Verdict) -> Verdict {
        let finish = |reason, replacement| Action::Finish(Ending { reason, replacement });
        let action = match old.action {
            old::Action::Replace(replacement) => Action::Replace(replacement.into()),
            old::Action::Drop(reason) => Action::Drop(reason),
            old::Action::Finish(matched) => finish(FinishReason::Stop(matched), None),
            old::Action::FinishAs(old::Ending { matched, instead }) => {
                finish(FinishReason::Stop(matched), Some(instead.into()))
            }
            old::Action::Abort(message) => finish(FinishReason::Abort(message), None),
            old::Action::Annotate(note) => Action::Annotate(note),
            old::Action::Route(sink) => Action::Route(sink),
            old::Action::SkipDetokenization => Action::SkipDetokenization,
            old::Action::Hold(millis) => Action::Hold(millis),
            old::Action::Release => Action::Release,
            old::Action::ReleaseAs(replacement) => Action::ReleaseAs(replacement.into()),
            old::Action::ReleaseAndHold(millis) => Action::ReleaseAndHold(millis),
        };
        Verdict { row: old.row, action }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_0_1_are_one_action() {
        let new = |action| Verdict::from(old::Verdict { row: 3, action }).action;
        let stop =
            |replacement| Action::Finish(Ending { reason: FinishReason::Stop("x".into()), replacement });
        assert_eq!(new(old::Action::Finish("x".into())), stop(None));
        let instead = old::Replacement { ids: vec![1], text: Some("a".into()) };
        let replacement = Replacement { ids: vec![1], text: Some("a".into()) };
        assert_eq!(
            new(old::Action::FinishAs(old::Ending { matched: "x".into(), instead })),
            stop(Some(replacement))
        );
        let aborted = Ending { reason: FinishReason::Abort("x".into()), replacement: None };
        assert_eq!(new(old::Action::Abort("x".into())), Action::Finish(aborted));
    }
}
