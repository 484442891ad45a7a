//! Payload of PLUGIN: the component that a plugin's name stands for.

use crate::format::{ByteReader, RecordKind, put_text, record};
use crate::plugin_component::PluginComponent;

/// Adds the PLUGIN of a component.
pub(crate) fn put_plugin(out: &mut Vec<u8>, component: &PluginComponent) {
    record(out, RecordKind::PLUGIN, 0, 0, |out| {
        put_text(out, &component.plugin);
        put_text(out, &component.version);
        out.extend_from_slice(&component.sha256);
    });
}

/// Returns `None` if the payload does not match its kind.
pub(super) fn decode_plugin(at: &mut ByteReader<'_>) -> Option<PluginComponent> {
    Some(PluginComponent { plugin: at.text()?, version: at.text()?, sha256: *at.take(32)?.first_chunk()? })
}
