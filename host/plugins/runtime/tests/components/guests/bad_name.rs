//! A description that breaks the contract.

use super::*;

#[test]
fn a_plugin_with_a_bad_name_is_not_loaded() {
    let error = host().load("mine", &guest("bad-name"), limits()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin \"mine\": has an invalid description: the name \"Bad Name\" has 'B', only a-z, 0-9 and - are allowed"
    );
}
