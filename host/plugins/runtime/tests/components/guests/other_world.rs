//! A component of another version.

use afterbay_runtime::LoadError;

use super::*;

#[test]
fn a_component_of_another_version_is_refused_with_all_differences() {
    let error = host().load("mine", &guest("other-world"), limits()).unwrap_err();
    let LoadError::OtherWorld { differences, .. } = error else { panic!("{error}") };
    assert_eq!(
        differences,
        [
            "exports afterbay:plugin/plugin@0.3.0, a plugin exports afterbay:plugin/plugin@0.2.0",
            "imports afterbay:plugin/signals@0.3.0, this host runs 0.2.0",
        ]
    );
}
