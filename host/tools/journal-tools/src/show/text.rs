//! `afterbay journal show RID --text`: the text that the reader got, whole, and what was received where it differs.

use super::{headline, print_head};
use afterbay_journal::reader::RequestHistory;
use afterbay_journal_view::json::totals;
use afterbay_journal_view::leg_view::LegView;
use afterbay_journal_view::legs::Request;
use afterbay_journal_view::output::{Difference, LegOutput, OutputText, Part};
use afterbay_journal_view::wording::counted;
use afterbay_terminal as screen;
use serde_json::Value;

/// The totals of a leg, what left and what was received.
pub(crate) fn json((leg, output): (&LegView<'_>, &LegOutput)) -> Value {
    let mut shown = totals(leg.stream, &leg.life.request);
    if let (Some(shown), Value::Object(output)) = (shown.as_object_mut(), output.json()) {
        shown.extend(output);
    }
    shown
}

/// Prints the text of the last leg, which is the reader's, and the differences on all legs.
pub(crate) fn print(
    request: &Request<RequestHistory>,
    shown: &[(&LegView<'_>, &LegOutput)],
) -> std::io::Result<()> {
    // The last of several instances has the outcome.
    let last = request.by_instance().next_back().and_then(|legs| legs.last());
    let of_reader = shown.iter().find(|(leg, _)| last.is_some_and(|last| last.stream == leg.stream));
    let Some((leg, output)) = of_reader else { return Ok(()) };
    headline(request);
    print_head(leg);
    leg.end.remarks("").iter().for_each(|sentence| screen::say_wrapped(sentence, 2));
    let info = &leg.life.request;
    if info.erased.is_some() {
        screen::say("");
        return Ok(());
    }
    if !output.has_text && info.rows > 0 {
        screen::complain(format!(
            "stream {:?}: its tokenizer is not known, so ids are shown; --tokenizer FILE shows their text",
            leg.stream
        ));
    }
    screen::say(format!("Sent to the reader, {} of {}:", info.forwarded, counted(info.received, "token")));
    screen::say("");
    print_text(output)?;
    screen::say("");
    for (leg, output) in shown {
        let of_stream = if shown.len() > 1 { format!(" on stream {}", leg.stream) } else { String::new() };
        let count = output.differences().count() as u64;
        match (count, output.rows_missing) {
            (0, 0) => screen::say(format!("All of it was received so{of_stream}.")),
            (0, _) => {}
            _ => {
                screen::say(format!("Something else was received{of_stream} in {}:", counted(count, "place")))
            }
        }
        output.differences().for_each(|difference| print_difference(difference, output.has_text));
    }
    screen::say("");
    Ok(())
}

/// Prints the whole text, with the parts marked that were received otherwise, and the places of rows that are missing.
fn print_text(output: &LegOutput) -> std::io::Result<()> {
    let shown = output.parts.iter().map(|part| match part {
        Part::Same(text) => whole(text, output.has_text),
        // A colour ends with its line.
        Part::Other(difference) => whole(&difference.sent, output.has_text)
            .split('\n')
            .map(|line| if line.is_empty() { String::new() } else { screen::warn_if(line.to_owned(), true) })
            .collect::<Vec<_>>()
            .join("\n"),
        Part::Absent(rows, why) => screen::bad(format!("[{}: {}]", counted(*rows, "row"), why.words())),
    });
    let between = if output.has_text { "" } else { " " };
    let mut out = screen::Output::new();
    out.text(&shown.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(between))?;
    out.flush()
}

fn print_difference(difference: &Difference, has_text: bool) {
    let frames = match (difference.first.0, difference.last.0) {
        (first, last) if first == last => format!("frame {first}"),
        (first, last) => format!("frames {first} to {last}"),
    };
    screen::say(format!("  {frames}, {}", difference.by()));
    for (name, side) in [("received", &difference.received), ("sent", &difference.sent)] {
        let side = whole(side, has_text);
        let side = if has_text { format!("{side:?}") } else { side };
        screen::say_wrapped(format!("    {name:8}  {side}"), 14);
    }
}

/// The text, or the ids if the text is not known.
fn whole(text: &OutputText, has_text: bool) -> String {
    match has_text {
        true => text.text(),
        false => text.ids.iter().map(i64::to_string).collect::<Vec<_>>().join(" "),
    }
}
