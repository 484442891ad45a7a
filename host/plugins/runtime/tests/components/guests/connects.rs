//! The network, which is linked and never granted, and bytes that are not a component.

use super::*;

#[test]
fn a_plugin_that_links_the_network_starts_and_a_connection_is_a_trap_that_names_the_interface() {
    let mut plugin = start("connects", "{}");
    let fault = plugin.process(&batch_of(&[1])).unwrap_err();
    let message = trap_message(&fault);
    assert!(
        message.contains("called wasi:sockets/") && message.contains("which is not granted"),
        "{message}"
    );
}

#[test]
fn bytes_that_are_not_a_component_are_refused_with_the_reason() {
    let refuse = |bytes: &[u8]| host().load("mine", bytes, limits()).unwrap_err().to_string();
    assert!(refuse(b"").contains("its 0 bytes do not begin as webassembly does"));
    assert!(refuse(b"#!/bin/sh").contains("do not begin as webassembly does"));
    assert!(refuse(b"\0asm\x01\0\0\0").contains("is a core module; build for a component target"));
    assert!(
        refuse(b"\0asm\x0d\0\x01\0")
            .contains("exports nothing, a plugin exports afterbay:plugin/plugin@0.2.0")
    );
    let whole = guest("nothing");
    assert!(refuse(&whole[..whole.len() / 2]).contains("not a webassembly component"));
}
