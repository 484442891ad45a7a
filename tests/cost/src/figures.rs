//! The committed figures, and the growth that is a finding.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The growth of a stage that needs no reason, in parts of one.
const GROWTH_MAX: f64 = 0.05;
/// The growth in instructions a frame that needs no reason: maps with random seeds and reads of a socket in another number of
/// pieces vary by less.
const NOISE_PER_FRAME: f64 = 300.0;

/// Instructions a row by stage, and under the last names system calls a frame.
pub type CaseFigures = Vec<(String, f64)>;

/// The figures of all cases, in order, and the compiler that they are of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The version of the compiler, as `rustc 1.95.0`.
    pub compiler: String,
    /// The name of a case, such as `msgpack.64`, and its figures.
    pub cases: Vec<(String, CaseFigures)>,
}

impl Figures {
    /// Reads the committed file.
    pub fn parse(text: &str) -> anyhow::Result<Figures> {
        let file: BTreeMap<String, toml::Value> = toml::from_str(text)?;
        let mut figures = Figures::default();
        for (name, value) in file {
            if let Some(compiler) = value.as_str() {
                figures.compiler = compiler.to_owned();
                continue;
            }
            let stages = value.as_table().with_context(|| format!("{name} is not a table"))?;
            let figure = |value: &toml::Value| {
                value.as_float().with_context(|| format!("{name}: {value} is not a float"))
            };
            let stages = stages.iter().map(|(stage, value)| Ok((stage.clone(), figure(value)?)));
            figures.cases.push((name.clone(), stages.collect::<anyhow::Result<_>>()?));
        }
        Ok(figures)
    }

    /// Writes the file.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "# Instructions a row of each stage, by encoding and rows a frame, and system calls a frame.\n\
             # `make bench-cost BLESS=1` writes this file.\n\ncompiler = {:?}\n",
            self.compiler
        );
        for (case, stages) in &self.cases {
            let _ = write!(text, "\n[{case:?}]\n");
            for (stage, figure) in stages {
                let _ = writeln!(text, "{stage:?} = {figure:.1}");
            }
        }
        text
    }

    /// The figure of a stage.
    pub fn get(&self, case: &str, stage: &str) -> Option<f64> {
        let (_, stages) = self.cases.iter().find(|(name, _)| name == case)?;
        stages.iter().find(|(name, _)| name == stage).map(|(_, figure)| *figure)
    }

    /// The figures that grew by more than a twentieth since `last`, each as a sentence.
    pub fn grown(&self, last: &Figures) -> Vec<String> {
        let all = self
            .cases
            .iter()
            .flat_map(|(case, stages)| stages.iter().map(move |(stage, now)| (case, stage, *now)));
        let grown = all.filter_map(|(case, stage, now)| {
            let last = last.get(case, stage)?;
            let rows: f64 = case.rsplit('.').next()?.parse().ok()?;
            let is_grown = now > last * (1.0 + GROWTH_MAX) && now > last + NOISE_PER_FRAME / rows;
            let percent = 100.0 * (now / last - 1.0);
            is_grown.then(|| format!("{case}: {stage} needs {now:.1}, {percent:.1} % more than {last:.1}"))
        });
        grown.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(decode: f64, join: f64) -> Figures {
        let stages = vec![("decode".to_owned(), decode), ("join".to_owned(), join)];
        Figures { compiler: "rustc 1".to_owned(), cases: vec![("pickle.64".to_owned(), stages)] }
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        let written = figures(812.4, 0.0);
        assert_eq!(Figures::parse(&written.to_toml()).unwrap(), written);
    }

    #[test]
    fn a_stage_that_grows_by_more_than_a_twentieth_is_a_finding() {
        let last = figures(100.0, 10.0);
        let grown = |decode, join| figures(decode, join).grown(&last);
        assert_eq!(grown(105.0, 10.9), [""; 0]);
        assert_eq!(grown(105.2, 5.0), ["pickle.64: decode needs 105.2, 5.2 % more than 100.0"]);
        assert_eq!(grown(120.0, 15.0).len(), 2);
    }
}
