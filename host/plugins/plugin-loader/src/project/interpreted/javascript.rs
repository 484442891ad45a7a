//! JavaScript projects: the module `src/plugin.js`, made the text of a function.
//!
//! A module cannot be evaluated from a text, so its imports and exports are rewritten, line by line. A module that has other
//! forms of them, or imports another file, is built by componentize-qjs each time.

use super::Interpreted;
use crate::project::{ProjectError, tools};
use afterbay_kit::Language;
use std::fmt::Write;
use std::path::Path;

const FILE: &str = "src/plugin.js";
const ENTRY: &str = include_str!("afterbay-dev.js");

/// `None` if the module cannot be made a function.
pub(super) fn read(dir: &Path) -> Result<Option<Interpreted>, ProjectError> {
    let path = dir.join(FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| ProjectError::Io { path, error })?;
    let Some(function) = function(&text) else { return Ok(None) };
    let mut imports = String::new();
    for (at, interface) in function.interfaces.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = writeln!(imports, "import * as interface{at} from {interface:?};");
    }
    let names: Vec<String> = (0..function.interfaces.len()).map(|at| format!("interface{at}")).collect();
    let _ = write!(imports, "const INTERFACES = [{}];", names.join(", "));
    Ok(Some(Interpreted {
        sources: vec![(FILE.to_owned(), function.text)],
        entry: ("afterbay-dev.js", ENTRY.replace("/* imports */", &imports)),
        modules: String::new(),
        tool: tools::find(dir, "node_modules/.bin/componentize-qjs", Language::JavaScript)?,
        args: vec![
            "--sync",
            "--wit",
            "build/dev/wit",
            "--world",
            "afterbay-dev",
            "--js",
            "build/dev/afterbay-dev.js",
            "--output",
            "build/dev/base.wasm",
        ],
    }))
}

/// A module as a function of the interfaces that it imports. The function returns the exports.
#[derive(Debug, PartialEq)]
struct Function {
    interfaces: Vec<String>,
    text: String,
}

/// Makes a module a function with the same lines. `None` if the module has an import or an export of another form.
fn function(module: &str) -> Option<Function> {
    if module.contains("import(") || module.contains("import.meta") {
        return None;
    }
    let (mut interfaces, mut exports, mut text) = (Vec::new(), Vec::new(), String::new());
    for line in module.lines() {
        // A text over several lines may hold a line that looks like an import.
        if line.matches('`').count() % 2 == 1 {
            return None;
        }
        let line = if let Some(import) = line.strip_prefix("import ") {
            let (names, interface) = import.trim_end().trim_end_matches(';').split_once(" from ")?;
            let interface = interface.trim().strip_prefix(['"', '\''])?.strip_suffix(['"', '\''])?;
            if !interface.contains(':') {
                return None;
            }
            interfaces.push(interface.to_owned());
            let all = format!("$interfaces[{}]", interfaces.len() - 1);
            match names.trim() {
                names if names.starts_with('{') && names.ends_with('}') => {
                    format!("const {} = {all};", names.replace(" as ", ": "))
                }
                names => match names.strip_prefix("* as ") {
                    Some(name) => format!("const {} = {all};", identifier(name)?),
                    None => format!("const {} = {all}.default;", identifier(names)?),
                },
            }
        } else if let Some(declaration) = line.strip_prefix("export ") {
            let kinds = ["const ", "let ", "var ", "class ", "function ", "async function "];
            let named = kinds.iter().find_map(|kind| declaration.strip_prefix(kind))?;
            let end = named.find(|c: char| !is_identifier(c)).unwrap_or(named.len());
            exports.push(identifier(&named[..end])?);
            declaration.to_owned()
        } else if line.starts_with("import") || line.starts_with("export") {
            return None;
        } else {
            line.to_owned()
        };
        text.push_str(&line);
        text.push('\n');
    }
    let text =
        format!("(function ($interfaces) {{ \"use strict\"; {text}return {{ {} }};\n}})", exports.join(", "));
    Some(Function { interfaces, text })
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn identifier(name: &str) -> Option<&str> {
    let name = name.trim();
    (!name.is_empty() && name.chars().all(is_identifier)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_becomes_a_function_with_the_same_lines() {
        let module = "import log from \"afterbay:plugin/log@0.2.0\";\n\
            import * as metrics from 'afterbay:plugin/metrics@0.2.0'\n\
            import { get, set as put } from \"afterbay:plugin/store@0.2.0\";\n\
            const exported = 1;\n\
            export const plugin = {\n};\n\
            export function more() {}\n";
        let function = function(module).unwrap();
        let interfaces =
            ["afterbay:plugin/log@0.2.0", "afterbay:plugin/metrics@0.2.0", "afterbay:plugin/store@0.2.0"];
        assert_eq!(function.interfaces, interfaces);
        let expected = "(function ($interfaces) { \"use strict\"; const log = $interfaces[0].default;\n\
            const metrics = $interfaces[1];\n\
            const { get, set: put } = $interfaces[2];\n\
            const exported = 1;\n\
            const plugin = {\n};\n\
            function more() {}\n\
            return { plugin, more };\n})";
        assert_eq!(function.text, expected);
    }

    #[test]
    fn a_module_with_another_form_of_import_or_export_is_left_to_the_tool() {
        for module in [
            "import \"./other.js\";",
            "import other from \"./other.js\";",
            "import {\n  get,\n} from \"afterbay:plugin/store@0.2.0\";",
            "import log, { more } from \"afterbay:plugin/log@0.2.0\";",
            "const other = await import(\"./other.js\");",
            "export default {};",
            "export { plugin };",
            "export * from \"./other.js\";",
            "const text = `\nimport log from \"afterbay:plugin/log@0.2.0\";\n`;",
        ] {
            assert_eq!(function(module), None, "{module}");
        }
    }

    #[test]
    fn the_module_of_a_new_project_becomes_a_function() {
        let files = afterbay_kit::project(Language::JavaScript, "my-own", &[]).unwrap();
        let module = files.iter().find(|file| file.path == FILE).unwrap();
        assert!(function(&module.contents).is_some());
    }
}
