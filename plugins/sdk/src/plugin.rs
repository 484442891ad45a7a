//! The trait that a plugin implements, and the macro that exports the plugin as a component.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::call::Answer;
use crate::{
    Batch, Calls, Columns, ConfigureError, IdShape, Opened, RequestId, RequestVerdicts, StateError, Verdicts,
};

/// A plugin. One value serves one stream.
///
/// The [crate's page](crate) shows a complete plugin.
pub trait Plugin: Sized + 'static {
    /// The settings, read from JSON. [`NoSettings`] for a plugin without settings.
    ///
    /// `#[serde(deny_unknown_fields)]` reports mistyped keys to the operator. `afterbay plugin check` shows
    /// the schema that [`JsonSchema`] derives.
    type Settings: DeserializeOwned + JsonSchema;

    /// The columns that the plugin reads. The host copies only these; all others are empty.
    const COLUMNS: Columns;

    /// The calls that the plugin wants in addition to `opened`, `process` and `closed`.
    const WANTS: Calls = Calls::empty();

    /// The meaning of the ids given to [`Verdicts::replace`]: the row's new ids, or all ids of the request so
    /// far.
    const WRITES: IdShape = IdShape::Delta;

    /// Creates the plugin, before any request.
    ///
    /// # Errors
    /// A message about invalid settings, built by [`bad_setting`](crate::bad_setting) or
    /// [`missing`](crate::missing) or from a string. Afterbay shows it to the operator unchanged and does not
    /// use the plugin.
    fn new(settings: Self::Settings) -> Result<Self, ConfigureError>;

    /// Announces a request. `resumed` is set if the request began before this instance.
    fn opened(&mut self, request: &Opened) {
        let _ = request;
    }

    /// Processes a batch. A row without a verdict stays unchanged.
    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts);

    /// Announces the end of a request. The host does not name the request again.
    fn closed(&mut self, request: RequestId) {
        let _ = request;
    }

    /// Announces that the [attributes](crate::attributes) of an open request changed. Requires
    /// [`Calls::CHANGED`].
    fn changed(&mut self, request: RequestId) {
        let _ = request;
    }

    /// Announces that the state of a sink changed, or the scheduler's load by a tenth: see
    /// [`signals`](crate::signals()). Comes between two batches, at most once in 100 ms. Requires
    /// [`Calls::PRESSURE`].
    fn pressure(&mut self) {}

    /// Announces that calls of the plugin ([`call::send`](crate::call::send)) have ended. Comes between two
    /// batches. The rows of a request without a verdict stay held.
    ///
    /// The operator's `on_fault` has been applied to a call that failed: `bypass` has released the held rows
    /// of the request, and `terminate` has aborted the request.
    fn answered(&mut self, answers: &[Answer], verdicts: &mut RequestVerdicts) {
        let _ = (answers, verdicts);
    }

    /// Announces that the [timers](crate::timer) of these requests are due. Comes between two batches, at most
    /// once in 10 ms. The rows of a request without a verdict stay held. Requires [`Calls::TIMER`].
    fn due(&mut self, time_ms: u64, requests: &[RequestId], verdicts: &mut RequestVerdicts) {
        let _ = (time_ms, requests, verdicts);
    }

    /// Returns the state of the open requests for the instance that replaces this one at a reload: at most 64
    /// MiB. Requires [`Calls::STATE`].
    fn export_state(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Receives the state that an instance of `version` exported. The host then opens the live requests with
    /// `resumed` set. Requires [`Calls::STATE`].
    ///
    /// # Errors
    /// If the plugin cannot use the state. The host then proceeds as if there had been no state.
    fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        let _ = (version, state);
        Err(StateError::UnknownVersion)
    }
}

/// The settings of a plugin without settings: any key is an error.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

/// Exports a [`Plugin`] as a component, under the name and version of the crate that calls the macro (`_` in
/// the name becomes `-`). Call it once in a crate. On targets other than WebAssembly it only checks the type.
///
/// ```
/// # use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Plugin, Verdicts};
/// struct Nothing;
///
/// impl Plugin for Nothing {
///     type Settings = NoSettings;
///     const COLUMNS: Columns = Columns::empty();
///
///     fn new(_: NoSettings) -> Result<Self, ConfigureError> {
///         Ok(Self)
///     }
///
///     fn process(&mut self, _: &Batch<'_>, _: &mut Verdicts) {}
/// }
///
/// afterbay_plugin::export!(Nothing);
/// ```
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        const _: () = {
            const fn is_a_plugin<P: $crate::Plugin>() {}
            is_a_plugin::<$plugin>();
        };

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            ::std::thread_local! {
                static INSTANCE: $crate::instance::Instance<$plugin> =
                    const { $crate::instance::Instance::new() };
            }

            struct Exported;

            impl $crate::abi::Guest for Exported {
                fn describe() -> $crate::abi::Description {
                    $crate::instance::describe::<$plugin>(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
                }

                fn configure(
                    settings: ::std::string::String,
                ) -> ::std::result::Result<(), $crate::ConfigureError> {
                    INSTANCE.with(|instance| instance.configure(&settings))
                }

                fn open(requests: ::std::vec::Vec<$crate::Opened>) {
                    INSTANCE.with(|instance| instance.open(&requests));
                }

                fn process(batch: $crate::abi::Batch) -> ::std::vec::Vec<$crate::Verdict> {
                    INSTANCE.with(|instance| instance.process(&batch))
                }

                fn close(requests: ::std::vec::Vec<$crate::RequestId>) {
                    INSTANCE.with(|instance| instance.close(&requests));
                }

                fn changed(requests: ::std::vec::Vec<$crate::RequestId>) {
                    INSTANCE.with(|instance| instance.changed(&requests));
                }

                fn pressure() {
                    INSTANCE.with(|instance| instance.pressure());
                }

                fn answered(
                    answers: ::std::vec::Vec<$crate::call::Answer>,
                ) -> ::std::vec::Vec<$crate::abi::RequestVerdict> {
                    INSTANCE.with(|instance| instance.answered(&answers))
                }

                fn due(
                    time_ms: u64,
                    requests: ::std::vec::Vec<$crate::RequestId>,
                ) -> ::std::vec::Vec<$crate::abi::RequestVerdict> {
                    INSTANCE.with(|instance| instance.due(time_ms, &requests))
                }

                fn export_state() -> ::std::vec::Vec<u8> {
                    INSTANCE.with(|instance| instance.export_state())
                }

                fn import_state(
                    version: ::std::string::String,
                    state: ::std::vec::Vec<u8>,
                ) -> ::std::result::Result<(), $crate::StateError> {
                    INSTANCE.with(|instance| instance.import_state(&version, &state))
                }
            }

    $crate::abi::export_transform!(Exported with_types_in $crate::abi);
        };
    };
}
