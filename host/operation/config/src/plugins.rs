//! Checks `[[stream.plugin]]`, as far as no loaded component is needed.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;
use toml::de::DeTable;

use crate::check::{Check, SeenNames, list, value};
use crate::checked::{Component, Grant, Limits, Mode, Place, Plugin, PluginDefaults, Stream};
use crate::location::{Located, Location, line_and_column};
use crate::reader::{Reader, Source};
use crate::written::Table as _;
use crate::{Engine, Env, Problem, Problems, bounds, disk, keys, written};

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

impl PluginDefaults {
    /// Reads the own defaults of a plugin: a TOML text with the keys `grant` and `limits` of `[[stream.plugin]]`, each optional.
    ///
    /// # Errors
    /// The text is not TOML, or a key or a value is not one of a configuration.
    pub fn parse(text: &str) -> Result<PluginDefaults, Problems> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let source =
            Source { file: Path::new("defaults"), text, env: &Env::EMPTY, problems: RefCell::default() };
        for error in errors {
            let (line, column) = line_and_column(text, error.span().map_or(0, |span| span.start));
            source.report(&Location { line, column, key: String::new() }, error.message());
        }
        let top = Location { line: 1, column: 1, key: String::new() };
        let reader = Reader::open(&source, table.get_ref(), top, &keys::PLUGIN_DEFAULTS);
        let written = written::PluginDefaults::read(&reader);
        let check = Check { source: &source, dir: PathBuf::new() };
        let mut defaults =
            check.grant_and_limits(&written.grant, &written.limits, &PluginDefaults::default());
        if let Some(engines) = &written.engines {
            defaults.engines = engines.iter().map(|engine| engine.value).collect();
        }
        let problems: Vec<Problem> = source.problems.take();
        if problems.is_empty() { Ok(defaults) } else { Err(Problems::new(problems)) }
    }
}

impl Check<'_> {
    pub(crate) fn plugin(
        &self,
        written: &written::Plugin,
        engine: Engine,
        names: &mut SeenNames,
    ) -> Option<Plugin> {
        let name = self.name(&written.name, names);
        let component = self.component(&written.component);
        let defaults = match (&component, &written.component) {
            (Some(Component::Builtin(name)), Some(Located { location, .. })) => {
                let defaults = self.defaults(name, location);
                if !defaults.engines.contains(&engine) {
                    let why = format!("builtin:{name} does not serve {} streams", engine.name());
                    self.source.report(location, why);
                }
                defaults
            }
            _ => PluginDefaults::default(),
        };
        let PluginDefaults { grant, limits, .. } =
            self.grant_and_limits(&written.grant, &written.limits, &defaults);
        let (mut settings, mut files) = (value(&written.settings).unwrap_or_default(), Vec::new());
        if let Some(Located { location, .. }) = &written.settings {
            settings.values_mut().for_each(|setting| {
                let problems = read_files(setting, &self.dir, &mut files);
                problems.into_iter().for_each(|problem| self.source.report(location, problem));
            });
            let bytes = serde_json::to_string(&settings).map_or(0, |json| json.len());
            self.most(bytes, bounds::SETTINGS_BYTES_MAX, "bytes as JSON", Some(location));
        }
        Some(Plugin {
            name: name?,
            component: component?,
            sha256: self.sha256(&written.sha256),
            allowed: None,
            mode: self.mode(written),
            limits,
            on_fault: value(&written.on_fault).unwrap_or_default(),
            quarantine: written.quarantine,
            grant,
            settings,
            files,
            settings_place: self
                .place(written.settings.as_ref().map_or(&written.location, |it| &it.location)),
            place: self.place(&written.location),
        })
    }

    fn place(&self, location: &Location) -> Place {
        let Location { line, column, key } = location.clone();
        Place { file: self.source.file.to_owned(), line, column, key }
    }

    /// The own defaults of a plugin in the binary.
    fn defaults(&self, name: &str, location: &Location) -> PluginDefaults {
        let builtin = self.source.env.builtins.iter().find(|builtin| builtin.name == name);
        let parsed =
            builtin.map_or_else(|| Ok(PluginDefaults::default()), |it| PluginDefaults::parse(it.defaults));
        parsed.unwrap_or_else(|problems| {
            self.source.report(location, format!("the plugin's own defaults: {problems}"));
            PluginDefaults::default()
        })
    }

    /// The written grants and limits. Defaults stand in for absent ones, each limit by itself.
    fn grant_and_limits(
        &self,
        grant: &Option<Vec<Located<Grant>>>,
        limits: &written::Limits,
        defaults: &PluginDefaults,
    ) -> PluginDefaults {
        let granted = |grant: &Vec<Located<Grant>>| grant.iter().map(|granted| granted.value).collect();
        PluginDefaults {
            engines: defaults.engines.clone(),
            grant: grant.as_ref().map_or_else(|| defaults.grant.clone(), granted),
            limits: Limits {
                memory_bytes: value(&limits.memory).unwrap_or(defaults.limits.memory_bytes),
                deadline: value(&limits.deadline).unwrap_or(defaults.limits.deadline),
                hold: value(&limits.hold).unwrap_or(defaults.limits.hold),
            },
        }
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

    /// Gives each plugin the digests of `plugins.allow`, but for the plugins in the binary.
    pub(crate) fn allow(&self, written: &Option<written::Plugins>, streams: &mut [Stream]) {
        let Some(written) = written else { return };
        let location = written.allow.first().map(|first| &first.location);
        self.most(written.allow.len(), bounds::PLUGINS_ALLOW_MAX, "digests", location);
        let digest = |located: &Located<String>| {
            let Located { value, location } = located;
            let Some(digits) = value.strip_prefix("sha256:") else {
                self.source.report(location, format!("{value:?} must be sha256: and 64 hexadecimal digits"));
                return None;
            };
            self.digits(digits, location)
        };
        let allowed: Arc<[[u8; 32]]> = written.allow.iter().filter_map(digest).collect();
        for plugin in streams.iter_mut().flat_map(|stream| &mut stream.plugins) {
            if !matches!(plugin.component, Component::Builtin(_)) {
                plugin.allowed = Some(Arc::clone(&allowed));
            }
        }
    }

    fn sha256(&self, written: &Option<Located<String>>) -> Option<[u8; 32]> {
        let Located { value, location } = written.as_ref()?;
        self.digits(value, location)
    }

    fn digits(&self, value: &str, location: &Location) -> Option<[u8; 32]> {
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
            if !known.iter().any(|builtin| builtin.name == name) {
                let known: Vec<&str> = known.iter().map(|builtin| builtin.name).collect();
                let known = list(&known);
                self.source.report(location, format!("{value:?} is not in this binary, which has {known}"));
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
