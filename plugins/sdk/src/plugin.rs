//! The trait that an author implements, and the macro that makes a component of it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Batch, Calls, Columns, ConfigureError, IdShape, Opened, RequestId, StateError, Verdicts};

/// A plugin. One value serves one stream for as long as it lives.
///
/// See the [crate's page](crate) for a whole one.
pub trait Plugin: Sized + 'static {
    /// What the operator may set, read from JSON. [`NoSettings`] where there is nothing.
    ///
    /// `#[serde(deny_unknown_fields)]` tells the operator of a mistyped key; the schema that [`JsonSchema`] derives is
    /// shown by `afterbay plugin check`.
    type Settings: DeserializeOwned + JsonSchema;

    /// The columns it wants to see. Only these are copied into the plugin; the others come empty.
    const COLUMNS: Columns;

    /// The calls it wants beyond `opened`, `process` and `closed`: each of these is made only where it is named here.
    const WANTS: Calls = Calls::empty();

    /// What the ids given to [`Verdicts::replace`] are: the row's new ones, or all of the request so far.
    const WRITES: IdShape = IdShape::Delta;

    /// Makes the plugin, before any request.
    ///
    /// # Errors
    /// What is wrong with the settings, in words: the operator sees it as it is, and the plugin is not used. See
    /// [`bad_setting`](crate::bad_setting) and [`missing`](crate::missing); a text alone will do.
    fn new(settings: Self::Settings) -> Result<Self, ConfigureError>;

    /// A request begins, or, with `resumed`, was there before this instance.
    fn opened(&mut self, request: &Opened) {
        let _ = request;
    }

    /// Judges a batch. A row without a verdict goes on as it is.
    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts);

    /// A request has ended; it is not named again.
    fn closed(&mut self, request: RequestId) {
        let _ = request;
    }

    /// The [attributes](crate::attributes) of an open request are others now. Only with [`Calls::CHANGED`].
    fn changed(&mut self, request: RequestId) {
        let _ = request;
    }

    /// What a sink does has changed, or the scheduler's load by a tenth: see [`signals`](crate::signals()). At most once in
    /// 100 ms, between two batches. Only with [`Calls::PRESSURE`].
    fn pressure(&mut self) {}

    /// All that it knows of its open requests, for the instance that takes over at a reload: at most 64 MiB. Only with
    /// [`Calls::STATE`].
    fn export_state(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// What an instance of `version` has exported; the requests are opened after this, with `resumed` set. Only with
    /// [`Calls::STATE`].
    ///
    /// # Errors
    /// If it is not understood; then the instance is as if nothing had been there to import.
    fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        let _ = (version, state);
        Err(StateError::UnknownVersion)
    }
}

/// The settings of a plugin that has none: any key is an error.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

/// Makes a component of a [`Plugin`]: its exported functions, under the name and version of the crate it stands in
/// (`_` in the name becomes `-`). Once in a crate. Built for anything but WebAssembly it only checks the type.
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
                static INSTANCE: $crate::abi::Instance<$plugin> = const { $crate::abi::Instance::new() };
            }

            struct Exported;

            impl $crate::abi::Guest for Exported {
                fn describe() -> $crate::abi::Description {
                    $crate::abi::describe::<$plugin>(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
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
