//! The versions of the contract that this host runs.
//!
//! An instance is of one version. `adapters.rs` converts an earlier version's arguments and answers.
//! `docs/src/plugins/versions.md` says what may change from version to version.

use std::fmt;

/// A version of the contract. Components of its patch versions are the same to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContractVersion {
    /// `afterbay:plugin@0.1.0`.
    V0_1,
    /// `afterbay:plugin@1.0.0`, the present version.
    V1_0,
}

impl ContractVersion {
    /// All versions that this host runs, the present one first.
    pub const ALL: [ContractVersion; 2] = [ContractVersion::V1_0, ContractVersion::V0_1];

    /// The number in the package's name: `1.0.0`.
    pub fn number(self) -> &'static str {
        match self {
            ContractVersion::V1_0 => "1.0.0",
            ContractVersion::V0_1 => "0.1.0",
        }
    }

    /// The version of the contract of a component with this number, if the host runs such components.
    ///
    /// Below 1.0 a minor version is another contract. From 1.0 on, a component of an earlier minor version runs on a later
    /// host, and a component of a later one may need functions that this host lacks. Patch versions do not differ.
    pub(crate) fn of(number: &str) -> Option<ContractVersion> {
        let [major, minor] = release(number)?;
        ContractVersion::ALL.into_iter().find(|known| match (release(known.number()), major) {
            (Some([0, own_minor]), 0) => minor == own_minor,
            (Some([own_major, own_minor]), _) => major == own_major && major > 0 && minor <= own_minor,
            (None, _) => false,
        })
    }
}

impl fmt::Display for ContractVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.number())
    }
}

/// The major and minor version of `1.2.3`. `None` for a pre-release, for a build and for anything else.
fn release(number: &str) -> Option<[u32; 2]> {
    let mut parts = number.split('.').map(|part| part.parse::<u32>().ok());
    let [major, minor, _patch] = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some([major, minor])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_of_an_earlier_version_is_run_and_one_of_a_later_version_is_not() {
        let of = ContractVersion::of;
        assert_eq!((of("1.0.0"), of("1.0.9")), (Some(ContractVersion::V1_0), Some(ContractVersion::V1_0)));
        assert_eq!((of("0.1.0"), of("0.1.7")), (Some(ContractVersion::V0_1), Some(ContractVersion::V0_1)));
        for other in
            ["0.2.0", "0.10.0", "0.0.1", "1.1.0", "2.0.0", "1.0.0-rc1", "1.0", "1.0.0.0", "no version"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
