//! Shared code of the guests in `examples/`.

pub mod spelled;

/// The call in which a guest misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    Configure,
    Open,
    Process,
    Close,
}

/// The settings `{"in": CALL}`.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
pub struct In {
    #[serde(rename = "in")]
    pub call: Call,
}

/// Makes a plugin that runs `$act` in the call that its settings name.
#[macro_export]
macro_rules! misbehave {
    ($act:expr) => {
        struct Misbehaves($crate::Call);

        impl Misbehaves {
            fn at(&self, call: $crate::Call) {
                if self.0 == call {
                    $act
                }
            }
        }

        impl afterbay_plugin::Plugin for Misbehaves {
            type Settings = $crate::In;
            const COLUMNS: afterbay_plugin::Columns = afterbay_plugin::Columns::empty();

            fn new($crate::In { call }: $crate::In) -> Result<Self, afterbay_plugin::ConfigureError> {
                let plugin = Self(call);
                plugin.at($crate::Call::Configure);
                Ok(plugin)
            }

            fn opened(&mut self, _: &afterbay_plugin::Opened) {
                self.at($crate::Call::Open);
            }

            fn process(&mut self, _: &afterbay_plugin::Batch<'_>, _: &mut afterbay_plugin::Verdicts) {
                self.at($crate::Call::Process);
            }

            fn closed(&mut self, _: afterbay_plugin::RequestId) {
                self.at($crate::Call::Close);
            }
        }

        afterbay_plugin::export!(Misbehaves);
    };
}

/// The description of a guest that bypasses the SDK.
pub fn description(name: &str) -> afterbay_plugin::abi::Description {
    afterbay_plugin::abi::Description {
        name: name.into(),
        version: "1".into(),
        settings_schema: String::new(),
        columns: afterbay_plugin::Columns::empty(),
        wants: afterbay_plugin::Calls::empty(),
        writes: afterbay_plugin::IdShape::Delta,
    }
}

/// Implements the calls that such a guest ignores.
#[macro_export]
macro_rules! silent_calls {
    () => {
        fn open(_: Vec<afterbay_plugin::Opened>) {}

        fn close(_: Vec<afterbay_plugin::RequestId>) {}

        fn changed(_: Vec<afterbay_plugin::RequestId>) {}

        fn pressure() {}

        fn answered(_: Vec<afterbay_plugin::call::Answer>) -> Vec<afterbay_plugin::RequestVerdict> {
            Vec::new()
        }

        fn due(_: u64, _: Vec<afterbay_plugin::RequestId>) -> Vec<afterbay_plugin::RequestVerdict> {
            Vec::new()
        }

        fn export_state() -> Vec<u8> {
            Vec::new()
        }

        fn import_state(_: String, _: Vec<u8>) -> Result<(), afterbay_plugin::StateError> {
            Ok(())
        }
    };
}

/// Exports a guest that bypasses the SDK as a component.
#[macro_export]
macro_rules! export_raw {
    ($guest:ident) => {
        afterbay_plugin::abi::export_transform!($guest with_types_in afterbay_plugin::abi);
    };
}
