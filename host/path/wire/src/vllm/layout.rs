//! The positions of the fields of a message. The engine's introduction has them, or else the lengths of the arrays tell them.
//!
//! Rows and frames are read and written by a canonical order: the fields of [`ROW`] or [`FRAME`], whether the engine has them or
//! not, and then those that this version does not know. A layout says where on the wire each stands.

use std::sync::{Arc, LazyLock};

use serde_json::Value as Json;

use super::fields::{
    self, EC_TRANSFER_PARAMS, ENGINE_INDEX, FINISH_REASON, FRAME, NEW_TOKEN_IDS, OUTPUTS, REQUEST_ID, ROW,
    ROW_FIELDS_MIN, RowField,
};
use crate::bounds::MAX_FIELDS;
use crate::introduction::{Introduction, IntroductionError};
use crate::pack::write;

/// The class of a frame, and that of a row.
pub(crate) const CLASS: &str = "EngineCoreOutputs";
const ROW_CLASS: &str = "EngineCoreOutput";

/// The layouts that engines introduced, the newest first. None: those that come with Afterbay.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputsLayouts(Arc<[OutputsLayout]>);

/// The layout of the frames and rows of one engine.
#[derive(Clone, Debug)]
struct OutputsLayout {
    versions: Arc<str>,
    frame: Arc<Layout>,
    row: Arc<Layout>,
}

/// The fields of an array.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The canonical position of each element.
    pub(super) wire: Vec<usize>,
    /// The name of each element.
    pub(super) names: Vec<Box<str>>,
    /// The value that says nothing, by canonical position.
    pub(super) absent: Vec<Box<[u8]>>,
    /// Whether a row begins with its request and its ids.
    pub(super) is_usual: bool,
}

/// The value of most fields that say nothing.
const NIL: &[u8] = &[0xc0];

impl Layout {
    fn new<'n>(
        known: &[&str],
        absent: Vec<Box<[u8]>>,
        fields: impl Iterator<Item = (&'n str, Box<[u8]>)>,
    ) -> Layout {
        let mut layout = Layout { wire: Vec::new(), names: Vec::new(), absent, is_usual: false };
        for (name, of_unknown) in fields {
            layout.wire.push(known.iter().position(|it| *it == name).unwrap_or(layout.absent.len()));
            if layout.wire.last() == Some(&layout.absent.len()) {
                layout.absent.push(of_unknown);
            }
            layout.names.push(name.into());
        }
        layout.is_usual = layout.wire.starts_with(&[REQUEST_ID, NEW_TOKEN_IDS]);
        layout
    }

    fn of_rows<'n>(fields: impl Iterator<Item = (&'n str, Box<[u8]>)>) -> Layout {
        let names: Vec<&str> = ROW.iter().map(|field| field.name).collect();
        let absent = ROW.iter().map(|field| [field.absent.byte()].into()).collect();
        Layout::new(&names, absent, fields)
    }

    fn of_frames<'n>(fields: impl Iterator<Item = (&'n str, Box<[u8]>)>) -> Layout {
        let names: Vec<&str> = FRAME.iter().map(|field| field.name).collect();
        Layout::new(&names, vec![NIL.into(); FRAME.len()], fields)
    }

    /// The layout of rows with so many fields in the versions that Afterbay knows. Further fields are not known.
    pub(super) fn row_of(elements: u64) -> Arc<Layout> {
        static KNOWN: LazyLock<Vec<Arc<Layout>>> =
            LazyLock::new(|| (0..=ROW.len()).map(|count| Arc::new(Layout::builtin_row(count))).collect());
        let count = usize::try_from(elements).unwrap_or(usize::MAX);
        KNOWN.get(count).cloned().unwrap_or_else(|| Arc::new(Layout::builtin_row(count)))
    }

    fn builtin_row(count: usize) -> Layout {
        // Version 0.25 has no `ec_transfer_params` in the middle.
        let is_first = count <= ROW_FIELDS_MIN;
        let known = ROW.iter().enumerate().filter(|(at, _)| !is_first || *at != EC_TRANSFER_PARAMS);
        let names: Vec<String> = known.map(|(_, field)| field.name.to_owned()).collect();
        let more = (names.len()..count).map(|at| at.to_string()).collect::<Vec<_>>();
        Layout::of_rows(names.iter().chain(&more).take(count).map(|name| (name.as_str(), NIL.into())))
    }

    fn frame_of(elements: u64) -> Arc<Layout> {
        static KNOWN: LazyLock<Vec<Arc<Layout>>> =
            LazyLock::new(|| (0..=FRAME.len()).map(|count| Arc::new(Layout::builtin_frame(count))).collect());
        let count = usize::try_from(elements).unwrap_or(usize::MAX);
        KNOWN.get(count).cloned().unwrap_or_else(|| Arc::new(Layout::builtin_frame(count)))
    }

    fn builtin_frame(count: usize) -> Layout {
        let names: Vec<String> = (FRAME.len()..count).map(|at| at.to_string()).collect();
        let known = FRAME.iter().map(|field| field.name);
        Layout::of_frames(
            known.chain(names.iter().map(String::as_str)).take(count).map(|name| (name, NIL.into())),
        )
    }

    /// The layout of a class that an engine introduced. The error: a needed field is missing.
    fn introduced(
        introduction: &Introduction,
        class: &'static str,
        needed: &[&'static str],
        of: impl Fn(&mut dyn Iterator<Item = (&str, Box<[u8]>)>) -> Layout,
    ) -> Result<Arc<Layout>, IntroductionError> {
        let fields = introduction.fields(class).into_iter().flatten();
        let mut fields = fields.map(|(name, default)| (name, default.map_or_else(|| NIL.into(), packed)));
        let layout = of(&mut fields);
        let is_missing = |field: &&&str| !layout.names.iter().any(|name| **name == ***field);
        match needed.iter().find(is_missing) {
            Some(field) => Err(IntroductionError::Needs { class, field }),
            None => Ok(Arc::new(layout)),
        }
    }

    /// The position on the wire of a field.
    pub(super) fn position(&self, canonical: usize) -> Option<usize> {
        // Nearly every layout has the first fields in the canonical order.
        match self.wire.get(canonical) {
            Some(at) if *at == canonical => Some(canonical),
            _ => self.wire.iter().position(|at| *at == canonical),
        }
    }

    /// The rules of a field of a row. `None`: it is not known.
    pub(super) fn row_field(&self, canonical: usize) -> Option<&'static RowField> {
        ROW.get(canonical)
    }

    /// The name of a field for messages.
    pub(super) fn name_of(&self, canonical: usize) -> &str {
        self.position(canonical).and_then(|at| self.names.get(at)).map_or("unknown", |name| name)
    }

    fn unknown(&self, known: usize) -> impl Iterator<Item = String> {
        let fields = self.wire.iter().zip(&self.names);
        fields.filter(move |(at, _)| **at >= known).map(|(_, name)| name.to_string())
    }
}

/// A default as msgpack. Nil for one that is neither a scalar nor empty.
fn packed(default: &Json) -> Box<[u8]> {
    let mut out = Vec::new();
    match default {
        Json::Bool(flag) => out.push(0xc2 + u8::from(*flag)),
        Json::Number(number) => match number.as_i64() {
            Some(int) => write::int(&mut out, int),
            None => write::float(&mut out, number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => write::str(&mut out, text),
        Json::Array(items) if items.is_empty() => write::array(&mut out, 0),
        Json::Object(entries) if entries.is_empty() => write::map(&mut out, 0),
        _ => write::nil(&mut out),
    }
    out.into()
}

impl OutputsLayouts {
    pub(crate) fn introduced<'i>(
        introductions: impl Iterator<Item = &'i Introduction>,
    ) -> Result<OutputsLayouts, IntroductionError> {
        let layout = |introduction: &Introduction| {
            let needed = [FRAME[ENGINE_INDEX].name, FRAME[OUTPUTS].name];
            let of_row = [ROW[REQUEST_ID].name, ROW[NEW_TOKEN_IDS].name, ROW[FINISH_REASON].name];
            Ok(OutputsLayout {
                versions: introduction.version.as_deref().unwrap_or("unknown").into(),
                frame: Layout::introduced(introduction, CLASS, &needed, |fields| Layout::of_frames(fields))?,
                row: Layout::introduced(introduction, ROW_CLASS, &of_row, |fields| Layout::of_rows(fields))?,
            })
        };
        introductions.map(layout).collect::<Result<_, _>>().map(OutputsLayouts)
    }

    pub(crate) fn is_builtin(&self) -> bool {
        self.0.is_empty()
    }

    /// The layout of a frame with so many fields. `None`: no engine introduced one.
    pub(super) fn frame(&self, elements: u64) -> Option<Arc<Layout>> {
        if self.is_builtin() {
            return (elements <= MAX_FIELDS as u64).then(|| Layout::frame_of(elements));
        }
        let mut all = self.0.iter().map(|layout| &layout.frame);
        all.find(|frame| frame.wire.len() as u64 == elements).cloned()
    }

    /// The layout of rows with so many fields, in frames of this layout.
    pub(super) fn row(&self, frame: &Layout, elements: u64) -> Option<Arc<Layout>> {
        if self.is_builtin() {
            let is_known = (ROW_FIELDS_MIN as u64..=MAX_FIELDS as u64).contains(&elements);
            return is_known.then(|| Layout::row_of(elements));
        }
        let mut all = self.0.iter().filter(|layout| *layout.frame == *frame).map(|layout| &layout.row);
        all.find(|row| row.wire.len() as u64 == elements).cloned()
    }

    /// The versions of the engine with these layouts.
    pub(super) fn versions(&self, frame: &Layout, row: u64) -> Arc<str> {
        let is = |it: &&OutputsLayout| *it.frame == *frame && (row == 0 || it.row.wire.len() as u64 == row);
        match self.0.iter().find(is) {
            Some(layout) => layout.versions.clone(),
            None => fields::versions(frame.wire.len() as u64, row).into(),
        }
    }

    pub(crate) fn unknown_fields(&self) -> Vec<String> {
        let newest = self.0.first().into_iter();
        newest
            .flat_map(|layout| layout.frame.unknown(FRAME.len()).chain(layout.row.unknown(ROW.len())))
            .collect()
    }
}
