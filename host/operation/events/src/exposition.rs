//! The two text formats of `/metrics`: OpenMetrics, and the older Prometheus format that every tool reads.

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

impl Exposition {
    /// The format that an `Accept` header prefers. [`Exposition::Text`] without a header, and if both formats are equally
    /// welcome and OpenMetrics is not named.
    pub fn accepted(accept: &str) -> Exposition {
        let quality_of = |types: &[&str]| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let is_meant =
                    parts.next().is_some_and(|name| types.iter().any(|it| it.eq_ignore_ascii_case(name)));
                let quality = parts.find_map(|part| part.strip_prefix("q=")).unwrap_or("1");
                is_meant.then(|| quality.parse().unwrap_or(0.0))
            });
            ranges.fold(0.0, f64::max)
        };
        let open_metrics = quality_of(&["application/openmetrics-text"]);
        match open_metrics > 0.0 && open_metrics >= quality_of(&["text/plain", "text/*"]) {
            true => Exposition::OpenMetrics,
            false => Exposition::Text,
        }
    }

    /// The `Content-Type` of this format.
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts OpenMetrics text to this format.
    pub(crate) fn of_open_metrics(self, text: String) -> String {
        match self {
            Exposition::OpenMetrics => text,
            Exposition::Text => classic(&text),
        }
    }
}

/// OpenMetrics names a counter's family without the `_total` of its samples, and has types and lines that the older format
/// lacks.
fn classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len() + open_metrics.len() / 16);
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                out += &format!("# HELP {name}{suffix} {help}\n");
            }
            out += &format!("# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_one_that_accept_prefers() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
        for (accept, exposition) in [
            ("", Exposition::Text),
            ("*/*", Exposition::Text),
            ("text/plain", Exposition::Text),
            ("application/openmetrics-text", Exposition::OpenMetrics),
            ("Application/OpenMetrics-Text; version=1.0.0", Exposition::OpenMetrics),
            (prometheus, Exposition::OpenMetrics),
            ("application/openmetrics-text;q=0.2,text/plain;q=0.9", Exposition::Text),
            ("application/openmetrics-text;q=0", Exposition::Text),
            ("application/openmetrics-textual", Exposition::Text),
        ] {
            assert_eq!(Exposition::accepted(accept), exposition, "{accept}");
        }
    }

    #[test]
    fn the_older_format_names_a_family_as_its_samples() {
        let text = "# HELP a_b Bs.\n# TYPE a_b counter\n# UNIT a_b bytes\na_b_total{c=\"# TYPE x counter\"} 1\n\
                    # HELP a_build Of it.\n# TYPE a_build info\na_build_info{v=\"1\"} 1\n\
                    # TYPE g gauge\ng 2\n# EOF\n";
        assert_eq!(
            classic(text),
            "# HELP a_b_total Bs.\n# TYPE a_b_total counter\na_b_total{c=\"# TYPE x counter\"} 1\n\
             # HELP a_build_info Of it.\n# TYPE a_build_info gauge\na_build_info{v=\"1\"} 1\n\
             # TYPE g gauge\ng 2\n"
        );
    }
}
