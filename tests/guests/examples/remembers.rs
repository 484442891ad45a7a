//! Counts the rows of each request, logs all calls about requests, and exports its state to the next
//! instance.

use std::collections::BTreeMap;

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, Level, Opened, Plugin, RequestId, StateError, Verdicts,
};

#[derive(Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
struct RemembersSettings {
    /// If more than 0: computes this many million rounds before it imports a state, and adds attributes to
    /// the note of each row.
    slow: u32,
    /// Traps at this row of a request; 0 never traps.
    traps_at: u64,
    /// Traps in `export-state`.
    traps_in_export: bool,
    /// Rejects any state.
    refuses: bool,
    /// Logs what each request was asked for.
    asks: bool,
}

struct Remembers {
    settings: RemembersSettings,
    /// The number of rows of each open request.
    rows: BTreeMap<RequestId, u64>,
}

impl Plugin for Remembers {
    type Settings = RemembersSettings;
    const COLUMNS: Columns = Columns::FINISHED;
    const WANTS: Calls = Calls::all();

    fn new(settings: RemembersSettings) -> Result<Self, ConfigureError> {
        Ok(Self { settings, rows: BTreeMap::new() })
    }

    fn opened(&mut self, request: &Opened) {
        let rows = *self.rows.entry(request.request).or_default();
        let attributes = afterbay_plugin::attributes(request.request);
        let attributes = attributes.as_deref().unwrap_or("none");
        afterbay_plugin::log(
            Level::Info,
            Some(request.request),
            &format!("opened with {rows} rows, worker {:?}, attributes {attributes}", request.front_end),
        );
        if self.settings.asks {
            let asked = afterbay_plugin::asked(request.request);
            let ids = afterbay_plugin::prompt_ids(request.request);
            let line = format!("asked {}, prompt {ids:?}", asked.as_deref().unwrap_or("nothing"));
            afterbay_plugin::log(Level::Info, Some(request.request), &line);
        }
    }

    fn changed(&mut self, request: RequestId) {
        let attributes = afterbay_plugin::attributes(request).unwrap_or_else(|| "none".to_owned());
        afterbay_plugin::log(Level::Info, Some(request), &format!("changed to {attributes}"));
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch.rows() {
            let rows = self.rows.entry(row.request()).or_default();
            *rows += 1;
            assert_ne!(*rows, self.settings.traps_at, "trap on request");
            let mut note = format!("row {rows}");
            if self.settings.slow > 0 {
                note += &format!(", {}", afterbay_plugin::attributes(row.request()).unwrap_or_default());
            }
            verdicts.annotate(row, note);
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.rows.remove(&request);
    }

    fn pressure(&mut self) {
        let now = afterbay_plugin::signals();
        let sinks: Vec<String> = now
            .sinks
            .iter()
            .map(|sink| format!("{} {:?} {}", sink.name, sink.state, sink.backlog.rows))
            .collect();
        let running = now.scheduler.and_then(|load| load.running);
        let (live, sinks) = (now.live_requests, sinks.join(", "));
        afterbay_plugin::log(
            Level::Info,
            None,
            &format!("live {live}, sinks [{sinks}], running {running:?}"),
        );
    }

    fn export_state(&mut self) -> Vec<u8> {
        assert!(!self.settings.traps_in_export, "trap on request");
        let rows = self.rows.iter();
        rows.flat_map(|(request, rows)| [request.to_le_bytes(), rows.to_le_bytes()]).flatten().collect()
    }

    fn import_state(&mut self, version: &str, state: &[u8]) -> Result<(), StateError> {
        if version != env!("CARGO_PKG_VERSION") {
            return Err(StateError::UnknownVersion);
        }
        for round in 0..u64::from(self.settings.slow) * 1_000_000 {
            std::hint::black_box(round);
        }
        if self.settings.refuses {
            return Err(StateError::Corrupt);
        }
        let (pairs, []) = state.as_chunks::<16>() else { return Err(StateError::Corrupt) };
        for pair in pairs {
            let (words, _) = pair.as_chunks::<8>();
            self.rows.insert(u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        }
        Ok(())
    }
}

afterbay_plugin::export!(Remembers);
