//! The source lines of a component's code, from the debug information (DWARF) of its modules.
//!
//! The lines are read once, when a component is loaded, and only those of the author's own files are kept: a table of some KiB.
//! wasmtime's own way (`Config::wasm_backtrace_details`) keeps the whole DWARF in memory, mostly that of a standard library,
//! and reads it again for each frame of each trap, while the stream waits.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian, UnitRef};
use wasmparser::{Parser, Payload};

use crate::limits::{DEBUG_BYTES_MAX, LINES_MAX};

/// Parts of paths of code that is not the author's: the standard library, crates of a registry or a git repository, the SDK,
/// a libc, and the bindings for C.
const FOREIGN: [&str; 12] = [
    "/rustc/",
    "/rustlib/",
    "/rust/deps/",
    "/registry/src/",
    "/git/checkouts/",
    "/vendor/afterbay-plugin/",
    "/plugins/sdk/src/",
    "/lib/libc/",
    "/ziglang/lib/",
    "/lib/zig/",
    "/wasi-libc/",
    "/bindings/transform.",
];

/// A line of a guest's own code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GuestFrame {
    /// The source file, relative to the directory of the build if the file is below that directory.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
    /// The function, without generic arguments of its type. Empty if the function has no name.
    pub function: Arc<str>,
}

impl fmt::Display for GuestFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        match &*self.function {
            "" => Ok(()),
            function => write!(f, " in {function}"),
        }
    }
}

/// The lines of a component's code. Empty if the component has no debug information.
#[derive(Debug, Default)]
pub(crate) struct SourceLines {
    /// The offsets at which another line begins, ascending, and the line's place in `stacks`. Offsets are of the component's
    /// file. `None`: code that is not the author's.
    begins: Vec<(u32, Option<u32>)>,
    /// The frames of one machine instruction, innermost first: a function, and the functions that it is inlined in.
    stacks: Vec<Vec<GuestFrame>>,
}

type Bytes<'c> = EndianSlice<'c, LittleEndian>;

/// A core module of the component.
#[derive(Default)]
struct Module<'c> {
    /// The offset of the code section. The addresses of DWARF begin there.
    code: Option<std::ops::Range<usize>>,
    sections: HashMap<&'c str, &'c [u8]>,
}

impl SourceLines {
    /// Reads the lines of a component. Damaged debug information gives fewer lines.
    pub(crate) fn of(component: &[u8]) -> SourceLines {
        let mut reader = Reader::default();
        let mut modules = vec![Module::default()];
        for payload in Parser::new(0).parse_all(component).map_while(Result::ok) {
            match payload {
                Payload::Version { .. } => modules.push(Module::default()),
                Payload::CodeSectionStart { range, .. } => {
                    modules.last_mut().into_iter().for_each(|module| module.code = Some(range.clone()));
                }
                Payload::CustomSection(section) if section.name().starts_with(".debug_") => {
                    let section = (section.name(), section.data());
                    modules.last_mut().into_iter().for_each(|module| module.sections.extend([section]));
                }
                Payload::End(_) => {
                    let module = modules.pop().unwrap_or_default();
                    // Lines of one damaged module are no reason to lose those of the others.
                    let _read = reader.module(&module);
                }
                _ => {}
            }
        }
        reader.lines.begins.sort_by_key(|(begin, _)| *begin);
        reader.lines
    }

    /// The frames of the author's code at an offset of the component's file, innermost first.
    pub(crate) fn at(&self, offset: usize) -> &[GuestFrame] {
        let after = self.begins.partition_point(|(begin, _)| *begin as usize <= offset);
        let stack = after.checked_sub(1).and_then(|at| self.begins.get(at)).and_then(|(_, stack)| *stack);
        stack.and_then(|stack| self.stacks.get(stack as usize)).map_or(&[], Vec::as_slice)
    }
}

/// The lines so far, with each stack once. Many frames have the same file and function, whose texts are made once.
#[derive(Default)]
struct Reader {
    lines: SourceLines,
    /// The directory of the unit's build, which ends with a slash.
    dir: String,
    /// The files of this directory's units, by their path. `None`: the file is not the author's.
    files: HashMap<String, Option<Arc<str>>>,
    /// The functions by their mangled names.
    functions: HashMap<String, Arc<str>>,
    stacks: HashMap<Vec<GuestFrame>, u32>,
}

impl Reader {
    fn module(&mut self, module: &Module<'_>) -> Result<(), addr2line::gimli::Error> {
        let Some(code) = &module.code else { return Ok(()) };
        let bytes: usize = module.sections.values().map(|section| section.len()).sum();
        if !module.sections.contains_key(".debug_line") || bytes > DEBUG_BYTES_MAX {
            return Ok(());
        }
        let load = |id: addr2line::gimli::SectionId| -> Result<Bytes<'_>, addr2line::gimli::Error> {
            let section = module.sections.get(id.name()).copied().unwrap_or_default();
            Ok(EndianSlice::new(section, LittleEndian))
        };
        let context = Context::from_dwarf(Dwarf::load(load)?)?;
        let dwarf = Dwarf::load(load)?;
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let unit = dwarf.unit(header)?;
            self.unit(&context, unit.unit_ref(&dwarf), code)?;
        }
        Ok(())
    }

    /// Adds the lines of a compilation unit, unless the unit is not the author's.
    fn unit(
        &mut self,
        context: &Context<Bytes<'_>>,
        unit: UnitRef<'_, Bytes<'_>>,
        code: &std::ops::Range<usize>,
    ) -> Result<(), addr2line::gimli::Error> {
        let text =
            |bytes: Option<Bytes<'_>>| bytes.map_or_else(String::new, |it| it.to_string_lossy().into_owned());
        let mut dir = text(unit.comp_dir);
        let name = text(unit.name);
        if !dir.ends_with('/') {
            dir.push('/');
        }
        let path = if name.starts_with('/') { name } else { format!("{dir}{name}") };
        if is_foreign(&path) {
            return Ok(());
        }
        if self.dir != dir {
            (self.dir, self.files) = (dir, HashMap::new());
        }
        let mut ranges = unit.unit_ranges()?;
        while let Some(range) = ranges.next()? {
            // The linker leaves ranges of functions that it removed: at 0, or past every address.
            if range.begin == 0 || range.end > code.len() as u64 || range.begin >= range.end {
                continue;
            }
            let mut end = None;
            for (begin, length, _) in context.find_location_range(range.begin, range.end)? {
                if self.lines.begins.len() >= LINES_MAX {
                    return Ok(());
                }
                let stack = self.stack(context, begin)?;
                self.begin(code, begin, stack);
                end = Some(begin.saturating_add(length));
            }
            end.into_iter().for_each(|end| self.begin(code, end, None));
        }
        Ok(())
    }

    fn begin(&mut self, code: &std::ops::Range<usize>, address: u64, stack: Option<u32>) {
        let offset = (code.start as u64).saturating_add(address);
        let Ok(offset) = u32::try_from(offset) else { return };
        match self.lines.begins.last_mut() {
            // The end of one range may be the beginning of the next.
            Some((last, other)) if *last == offset => *other = stack.or(*other),
            Some((_, last)) if *last == stack => {}
            _ => self.lines.begins.push((offset, stack)),
        }
    }

    /// The author's frames at an address.
    fn stack(
        &mut self,
        context: &Context<Bytes<'_>>,
        address: u64,
    ) -> Result<Option<u32>, addr2line::gimli::Error> {
        let mut stack = Vec::new();
        let mut frames = context.find_frames(address).skip_all_loads()?;
        while let Some(frame) = frames.next()? {
            let Some((file, line)) = frame.location.as_ref().and_then(|it| Some((it.file?, it.line?))) else {
                continue;
            };
            let Some(file) = self.file(file).filter(|_| line > 0) else { continue };
            let function = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let function = self.function(&function.unwrap_or_default());
            stack.push(GuestFrame { file, line, function });
        }
        if stack.is_empty() {
            return Ok(None);
        }
        let stacks = &mut self.lines.stacks;
        Ok(Some(*self.stacks.entry(stack).or_insert_with_key(|stack| {
            stacks.push(stack.clone());
            u32::try_from(stacks.len() - 1).unwrap_or(u32::MAX)
        })))
    }

    /// The file as a frame has it. `None`: it is not the author's.
    fn file(&mut self, path: &str) -> Option<Arc<str>> {
        if let Some(known) = self.files.get(path) {
            return known.clone();
        }
        let file = (!is_foreign(path)).then(|| path.strip_prefix(&*self.dir).unwrap_or(path).into());
        self.files.insert(path.to_owned(), file.clone());
        file
    }

    /// The function as a frame has it.
    fn function(&mut self, mangled: &str) -> Arc<str> {
        if let Some(known) = self.functions.get(mangled) {
            return known.clone();
        }
        let function: Arc<str> = short_name(mangled).into();
        self.functions.insert(mangled.to_owned(), function.clone());
        function
    }
}

/// Whether a path is one of code that is not the author's.
pub(crate) fn is_foreign(path: &str) -> bool {
    FOREIGN.iter().any(|part| path.contains(part))
}

/// A function's name as an author writes it: demangled, and `Plugin::process` for `<Plugin as afterbay_plugin::Plugin>::process`.
pub(crate) fn short_name(mangled: &str) -> String {
    let name = format!("{:#}", rustc_demangle::demangle(mangled));
    let Some(rest) = name.strip_prefix('<') else { return name };
    let mut depth = 1;
    for (at, char) in rest.char_indices() {
        match char {
            '<' => depth += 1,
            // Not the arrow of a function's type.
            '>' if !rest[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let own = &rest[..at];
            let own = own.split_once(" as ").map_or(own, |(own, _)| own);
            return format!("{own}{}", &rest[at + 1..]);
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_named_as_its_author_writes_it() {
        for (name, short) in [
            ("_ZN10stop_early6helper17h0123456789abcdefE", "stop_early::helper"),
            (
                "_ZN68_$LT$stop_early..Stop$u20$as$u20$afterbay_plugin..plugin..Plugin$GT$7process17h0123456789abcdefE",
                "stop_early::Stop::process",
            ),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("exports_afterbay_plugin_plugin_process", "exports_afterbay_plugin_plugin_process"),
            ("", ""),
        ] {
            assert_eq!(short_name(name), short);
        }
    }

    #[test]
    fn code_of_libraries_is_not_the_authors() {
        for path in [
            "/rustc/abc/library/core/src/slice/mod.rs",
            "/root/.cargo/registry/src/index.crates.io-1949/serde-1.0.0/src/lib.rs",
            "/home/me/stop-early/vendor/afterbay-plugin/src/instance.rs",
            "/home/me/.venv/lib/python3.11/site-packages/ziglang/lib/libc/musl/src/string/memcpy.c",
            "/home/me/stop-early/bindings/transform.c",
        ] {
            assert!(is_foreign(path), "{path}");
        }
        assert!(!is_foreign("/home/me/afterbay-plugin-registry/src/lib.rs"));
    }

    #[test]
    fn bytes_without_debug_information_have_no_lines() {
        for bytes in [&b""[..], b"\0asm\x01\0\0\0", b"\0asm\x0d\0\x01\0", &[0xff; 64]] {
            let lines = SourceLines::of(bytes);
            assert!(lines.at(0).is_empty() && lines.at(usize::MAX).is_empty(), "{lines:?}");
        }
    }
}
