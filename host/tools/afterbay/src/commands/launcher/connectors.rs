//! The connectors of every engine as files of a directory, which Python finds on PYTHONPATH without an installation.

macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../../connectors/", $name)))
    };
}

/// The path in the directory, and the content, of each file.
pub(crate) const CONNECTORS: &[(&str, &str)] = &[
    file!("afterbay_connector/__init__.py"),
    file!("afterbay_connector/capability.py"),
    file!("afterbay_connector/credit.py"),
    file!("afterbay_connector/front_end.py"),
    file!("afterbay_connector/http_gate.py"),
    file!("afterbay_connector/imports.py"),
    file!("afterbay_connector/introduction.py"),
    file!("afterbay_connector/peer.py"),
    file!("afterbay_connector/pieces.py"),
    file!("afterbay_connector/rendezvous.py"),
    file!("afterbay_connector/request_id.py"),
    file!("afterbay_connector/request_record.py"),
    file!("afterbay_connector/settings.py"),
    file!("afterbay_sglang/__init__.py"),
    file!("afterbay_sglang/abort.py"),
    file!("afterbay_sglang/attached.py"),
    (
        "afterbay_sglang/attached_path/afterbay_sglang_attached-0.1.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: afterbay-sglang-attached\nVersion: 0.1.0\n",
    ),
    (
        "afterbay_sglang/attached_path/afterbay_sglang_attached-0.1.0.dist-info/entry_points.txt",
        "[sglang.srt.platforms]\nafterbay = afterbay_sglang.attached:activate\n",
    ),
    file!("afterbay_sglang/detokenizer.py"),
    file!("afterbay_sglang/errors.py"),
    file!("afterbay_sglang/http_app.py"),
    file!("afterbay_sglang/ids.py"),
    file!("afterbay_sglang/ingress.py"),
    file!("afterbay_sglang/leases.py"),
    file!("afterbay_sglang/readers.py"),
    file!("afterbay_sglang/rendezvous.py"),
    file!("afterbay_sglang/request_record.py"),
    file!("afterbay_sglang/rust_server/__init__.py"),
    file!("afterbay_sglang/rust_server/detour.py"),
    file!("afterbay_sglang/rust_server/rows.py"),
    file!("afterbay_sglang/settings.py"),
    file!("afterbay_sglang/smg.py"),
    file!("afterbay_sglang/text.py"),
    file!("afterbay_sglang/tool_calls.py"),
    file!("afterbay_sglang/wire.py"),
    file!("afterbay_sglang/workers.py"),
    file!("afterbay_vllm/__init__.py"),
    file!("afterbay_vllm/engine.py"),
    file!("afterbay_vllm/front_end.py"),
    file!("afterbay_vllm/health.py"),
    file!("afterbay_vllm/ids.py"),
    file!("afterbay_vllm/leases.py"),
    file!("afterbay_vllm/rendezvous.py"),
    file!("afterbay_vllm/request_record.py"),
    file!("afterbay_vllm/settings.py"),
    file!("afterbay_vllm/tool_calls.py"),
    file!("afterbay_vllm/versions.py"),
    // The name of the wheel: Python takes a distribution only from the first place of its path, so that an installed wheel's connector
    // is not loaded a second time.
    (
        concat!("afterbay-", env!("CARGO_PKG_VERSION"), ".dist-info/METADATA"),
        concat!("Metadata-Version: 2.1\nName: afterbay\nVersion: ", env!("CARGO_PKG_VERSION"), "\n"),
    ),
    (
        concat!("afterbay-", env!("CARGO_PKG_VERSION"), ".dist-info/entry_points.txt"),
        "[sglang.srt.plugins]\nafterbay = afterbay_sglang:register\n\n[vllm.general_plugins]\nafterbay = afterbay_vllm:register\n",
    ),
];

#[cfg(test)]
mod tests {
    use super::CONNECTORS;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn modules(dir: &Path, of: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                modules(&path, of, found);
            } else if path.extension().is_some_and(|it| it == "py") && !path.ends_with("__main__.py") {
                found.insert(path.strip_prefix(of).unwrap().display().to_string());
            }
        }
    }

    #[test]
    fn the_launcher_has_each_module_of_the_connectors() {
        let connectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../connectors");
        let mut found = BTreeSet::new();
        for package in ["afterbay_connector", "afterbay_sglang", "afterbay_vllm"] {
            modules(&connectors.join(package), &connectors, &mut found);
        }
        let carried = CONNECTORS.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".py"));
        assert_eq!(carried.map(str::to_owned).collect::<BTreeSet<_>>(), found);
    }
}
