//! A component that panics in `describe`.

use afterbay_runtime::{Call, LoadError};

use super::*;

#[test]
fn a_plugin_that_cannot_describe_itself_is_not_loaded() {
    let error = host().load("mine", &guest("panics-in-describe"), limits()).unwrap_err();
    let LoadError::Fault(fault) = &error else { panic!("{error}") };
    assert_eq!(
        (fault.plugin.as_str(), fault.call, fault.cause.kind().word()),
        ("mine", Call::Describe, "trap")
    );
}
