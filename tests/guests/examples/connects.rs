//! Links the network functions and traps by connecting in its first batch.

use std::net::TcpStream;

use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Plugin, Verdicts};

struct Connects;

impl Plugin for Connects {
    type Settings = NoSettings;
    const COLUMNS: Columns = Columns::empty();

    fn new(_: NoSettings) -> Result<Self, ConfigureError> {
        Ok(Self)
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        if let Some(row) = batch.rows().next() {
            verdicts.drop(row, format!("{:?}", TcpStream::connect("127.0.0.1:1")));
        }
    }
}

afterbay_plugin::export!(Connects);
