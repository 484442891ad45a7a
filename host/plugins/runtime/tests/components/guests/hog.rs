//! Memory without end.

use afterbay_runtime::{Call, LoadError, StartError};

use super::*;

#[test]
fn memory_past_the_limit_is_a_fault_with_the_limit() {
    for call in ["open", "process", "close"] {
        let mut plugin = start("hog", &format!(r#"{{"in": "{call}"}}"#));
        let fault = provoke(&mut plugin, call);
        let FaultCause::Memory { wanted, limit } = fault.cause else { panic!("{fault}") };
        assert!(limit == 64 << 20 && wanted > limit && wanted < limit * 2, "wanted {wanted}");
        assert_eq!(plugin.memory_bytes(), 0, "the instance is gone");
    }
}

#[test]
fn a_plugin_whose_settings_need_too_much_memory_does_not_start() {
    let error = load("hog").instantiate(r#"{"in": "configure"}"#).unwrap_err();
    let StartError::Fault(fault) = &error else { panic!("{error}") };
    assert_eq!((fault.call, fault.cause.kind().word()), (Call::Configure, "memory"));
}

#[test]
fn a_plugin_whose_first_memory_is_over_the_limit_is_not_loaded() {
    let small = afterbay_runtime::Limits { memory_bytes: 64 << 10, ..limits() };
    let error = host().load("hog", &guest("hog"), small).unwrap_err();
    let LoadError::Fault(fault) = &error else { panic!("{error}") };
    assert_eq!((fault.call, fault.cause.kind().word()), (Call::Start, "memory"));
}
