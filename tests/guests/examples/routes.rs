//! Chooses the verdict by the end of the rid: `-TO-NAME` routes the request's rows to the sink NAME, `-skip`
//! lets its first row bypass the detokenizer, `-late` its second row.

use afterbay_plugin::{
    Batch, Columns, ConfigureError, NoSettings, Opened, Plugin, RequestId, Requests, Verdicts,
};

struct Routes {
    requests: Requests<(String, u64)>,
}

impl Plugin for Routes {
    type Settings = NoSettings;
    const COLUMNS: Columns = Columns::empty();

    fn new(_: NoSettings) -> Result<Self, ConfigureError> {
        Ok(Self { requests: Requests::new() })
    }

    fn opened(&mut self, request: &Opened) {
        self.requests.insert(request.request, (request.rid.clone(), 0));
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let Some((rid, rows)) = self.requests.get_mut(row.request()) else { continue };
            *rows += 1;
            if let Some((_, sink)) = rid.split_once("-TO-") {
                verdicts.route(row, sink);
            } else if rid.ends_with("-skip") && *rows == 1 || rid.ends_with("-late") && *rows == 2 {
                verdicts.skip_text(row);
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }
}

afterbay_plugin::export!(Routes);
