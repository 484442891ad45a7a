//! Checks `[[stream.plugin]]`, as far as no loaded component is needed.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::check::{Check, SeenNames, list, value};
use crate::checked::{Component, Grant, Limits, Mode, Plugin, Quarantine};
use crate::location::Located;
use crate::units::{Size, Time};
use crate::{bounds, disk, written};

/// Replaces each `{ file = "…" }` in `setting` with the text of that file, since a plugin has no file system. Relative paths
/// start at `dir`. Each path is added to `files`, readable or not. Returns one sentence for each file that cannot be used.
pub fn read_files(setting: &mut Json, dir: &Path, files: &mut Vec<PathBuf>) -> Vec<String> {
    match setting {
        Json::Array(items) => items.iter_mut().flat_map(|item| read_files(item, dir, files)).collect(),
        Json::Object(members) => {
            let Some(Json::String(name)) = members.get("file").filter(|_| members.len() == 1) else {
                return members.values_mut().flat_map(|member| read_files(member, dir, files)).collect();
            };
            let path = dir.join(name);
            let read = disk::text(&path, bounds::SETTINGS_BYTES_MAX as u64);
            let wrong = match read {
                Ok(text) => {
                    *setting = Json::String(text);
                    None
                }
                Err(why) => Some(format!("file {path:?} {why}")),
            };
            files.push(path);
            wrong.into_iter().collect()
        }
        _ => Vec::new(),
    }
}

impl Check<'_> {
    pub(crate) fn plugin(&self, written: &written::Plugin, names: &mut SeenNames) -> Option<Plugin> {
        let name = self.name(&written.name, names);
        let component = self.component(&written.component);
        let memory = self.within(&written.limits.memory, bounds::PLUGIN_MEMORY_BYTES, |&bytes| Size(bytes));
        let deadline = self.within(&written.limits.deadline, bounds::PLUGIN_DEADLINE, |&time| Time(time));
        let hold = self.within(&written.limits.hold, bounds::PLUGIN_HOLD, |&time| Time(time));
        let default = Limits::default();
        let limits = Limits {
            memory_bytes: memory.unwrap_or(default.memory_bytes),
            deadline: deadline.unwrap_or(default.deadline),
            hold: hold.unwrap_or(default.hold),
        };
        let (mut settings, mut files) = (value(&written.settings).unwrap_or_default(), Vec::new());
        if let Some(Located { location, .. }) = &written.settings {
            settings.values_mut().for_each(|setting| {
                let problems = read_files(setting, &self.dir, &mut files);
                problems.into_iter().for_each(|problem| self.source.report(location, problem));
            });
            let bytes = serde_json::to_string(&settings).map_or(0, |json| json.len());
            self.most(bytes, bounds::SETTINGS_BYTES_MAX, "bytes as JSON", Some(location));
        }
        let grant = match &written.grant {
            None => Grant::DEFAULT.to_vec(),
            Some(granted) => granted.iter().map(|granted| granted.value).collect(),
        };
        Some(Plugin {
            name: name?,
            component: component?,
            sha256: self.sha256(&written.sha256),
            mode: self.mode(written),
            limits,
            on_fault: value(&written.on_fault).unwrap_or_default(),
            quarantine: self.quarantine(written),
            grant,
            settings,
            files,
        })
    }

    fn mode(&self, written: &written::Plugin) -> Mode {
        let is_shadow = value(&written.is_shadow).unwrap_or(false);
        match &written.shadow_of {
            Some(Located { location, .. }) if !is_shadow => {
                self.source.report(location, "is for mode = \"shadow\"".to_owned());
                Mode::Live
            }
            // `shadows` checks the name against the stream's plugins.
            Some(Located { value, .. }) => Mode::Shadow { of: value.parse().ok() },
            None if is_shadow => Mode::Shadow { of: None },
            None => Mode::Live,
        }
    }

    /// Checks that each shadow names a live plugin of the same stream.
    pub(crate) fn shadows(&self, written: &[written::Plugin]) {
        for Located { value: of, location } in written.iter().filter_map(|plugin| plugin.shadow_of.as_ref()) {
            let live = written.iter().filter(|plugin| !value(&plugin.is_shadow).unwrap_or(false));
            let live: Vec<&str> =
                live.filter_map(|plugin| Some(plugin.name.as_ref()?.value.as_str())).collect();
            if !live.contains(&of.as_str()) {
                self.source.report(
                    location,
                    format!("{of:?} is not a live plugin of this stream, which has {}", list(&live)),
                );
            }
        }
    }

    fn quarantine(&self, written: &written::Plugin) -> Quarantine {
        let default = Quarantine::default();
        let faults = self.within(&written.quarantine.faults, bounds::QUARANTINE_FAULTS, |&faults| faults);
        let within = self.within(&written.quarantine.within, bounds::QUARANTINE_WITHIN, |&time| Time(time));
        Quarantine {
            faults: faults.map_or(default.faults, |faults| faults as usize),
            within: within.unwrap_or(default.within),
        }
    }

    fn sha256(&self, written: &Option<Located<String>>) -> Option<[u8; 32]> {
        let Located { value, location } = written.as_ref()?;
        let digit = |digit: &u8| char::from(*digit).to_digit(16);
        let byte = |pair: &[u8]| match pair {
            [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = value.as_bytes().chunks(2).map(byte).collect();
        let bytes: Option<[u8; 32]> = bytes.and_then(|bytes| bytes.try_into().ok());
        if bytes.is_none() {
            self.source
                .report(location, format!("{value:?} is not a sha256, must have 64 hexadecimal digits"));
        }
        bytes
    }

    fn component(&self, written: &Option<Located<String>>) -> Option<Component> {
        let Located { value, location } = written.as_ref()?;
        if let Some(name) = value.strip_prefix("builtin:") {
            let known = self.source.env.builtins;
            if !known.contains(&name) {
                self.source
                    .report(location, format!("{value:?} is not in this binary, which has {}", list(known)));
            }
            return Some(Component::Builtin(name.to_owned()));
        }
        if value.starts_with("oci://") {
            return match (self.source.env.reference)(value) {
                Ok(()) => Some(Component::Registry(value.clone())),
                Err(why) => {
                    self.source.report(location, why);
                    None
                }
            };
        }
        if value.contains("://") {
            self.source.report(location, format!("{value:?} must be builtin:NAME, oci://… or a path"));
            return None;
        }
        let path = self.path(written)?;
        if path.is_dir() {
            return Some(Component::Project(path));
        }
        self.readable(written).map(Component::File)
    }
}
