//! Records which components the plugins are.

use super::JournalWriter;
use crate::format::{RecordKind, put};
use crate::plugin_component::PluginComponent;

impl JournalWriter {
    /// Records the components of all plugins, each by its name, version and SHA-256, where they differ from those recorded last.
    /// Outcomes that are added from now on have verdicts of these. Returns whether any differs.
    pub fn plugins<'p>(
        &mut self,
        plugins: impl Iterator<Item = (&'p str, &'p str, &'p [u8; 32])> + Clone,
    ) -> bool {
        let mut recorded = self.plugins.iter();
        let is_recorded = |(plugin, version, sha256): (&str, &str, &[u8; 32])| {
            let is_it = |known: &PluginComponent| {
                known.plugin == plugin && known.version == version && known.sha256 == *sha256
            };
            recorded.next().is_some_and(is_it)
        };
        if plugins.clone().all(is_recorded) && recorded.next().is_none() {
            return false;
        }
        let component = |(plugin, version, sha256): (&str, &str, &[u8; 32])| PluginComponent {
            plugin: plugin.to_owned(),
            version: version.to_owned(),
            sha256: *sha256,
        };
        let before = std::mem::replace(&mut self.plugins, plugins.map(component).collect());
        let mut changed = Vec::new();
        let is_new = |component: &&PluginComponent| !before.contains(component);
        let new = self.plugins.iter().filter(is_new);
        new.for_each(|component| put(&mut changed, RecordKind::PLUGIN, 0, 0, component));
        if !changed.is_empty() {
            self.add(|pending| pending.extend_from_slice(&changed));
        }
        true
    }
}
