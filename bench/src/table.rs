//! Systems side by side: a table for the terminal, and as CSV.

use std::fmt::Write;

/// Figures of several systems for the same things.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The unit of the figures.
    pub unit: String,
    /// Names of the columns.
    pub systems: Vec<String>,
    /// Name and one figure per system; `None` where a system has none.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Table {
    /// Notes a figure; rows and columns appear in the order of their first figure.
    pub fn set(&mut self, system: &str, row: &str, figure: f64) {
        let column = self.systems.iter().position(|s| s == system).unwrap_or_else(|| {
            self.systems.push(system.into());
            self.systems.len() - 1
        });
        let at = self.rows.iter().position(|(name, _)| name == row).unwrap_or_else(|| {
            self.rows.push((row.into(), Vec::new()));
            self.rows.len() - 1
        });
        if let Some((_, figures)) = self.rows.get_mut(at) {
            figures.resize(figures.len().max(column + 1), None);
            figures[column] = Some(figure);
        }
    }

    /// The figure of a system in a row.
    pub fn get(&self, system: &str, row: &str) -> Option<f64> {
        let column = self.systems.iter().position(|s| s == system)?;
        self.rows.iter().find(|(name, _)| name == row)?.1.get(column).copied().flatten()
    }

    /// Comma-separated values with a line of names.
    pub fn csv(&self) -> String {
        let mut out = format!("{},{}\n", self.unit.replace(',', ";"), self.systems.join(","));
        for (name, figures) in &self.rows {
            let cells: Vec<String> =
                self.cells(figures).map(|f| f.map_or(String::new(), |f| format!("{f:.1}"))).collect();
            let _ = writeln!(out, "{},{}", name.replace(',', ";"), cells.join(","));
        }
        out
    }

    /// For people: figures with thousands apart, and the ratio of `subject` to `baseline` if both are there.
    pub fn text(&self, subject: &str, baseline: &str) -> String {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(self.unit.len());
        let mut out = format!("{}\n{:<width$}", self.title, self.unit);
        for system in &self.systems {
            let _ = write!(out, " {system:>16}");
        }
        let compare = subject != baseline && [subject, baseline].iter().all(|s| self.systems.iter().any(|t| t == s));
        if compare {
            let _ = write!(out, " {:>18}", format!("{subject}/{baseline}"));
        }
        out.push('\n');
        for (name, figures) in &self.rows {
            let _ = write!(out, "{name:<width$}");
            for figure in self.cells(figures) {
                let _ = write!(out, " {:>16}", figure.map_or("-".into(), thousands));
            }
            if compare {
                let ratio = self.get(subject, name).zip(self.get(baseline, name)).filter(|(_, b)| *b != 0.0);
                let _ = write!(out, " {:>18}", ratio.map_or("-".into(), |(s, b)| format!("{:.3}", s / b)));
            }
            out.push('\n');
        }
        out
    }

    fn cells<'a>(&'a self, figures: &'a [Option<f64>]) -> impl Iterator<Item = Option<f64>> + 'a {
        (0..self.systems.len()).map(|n| figures.get(n).copied().flatten())
    }
}

/// 1234567.8 as "1 234 568".
fn thousands(figure: f64) -> String {
    let digits = format!("{:.0}", figure.abs());
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            out.push(' ');
        }
        out.push(digit);
    }
    if figure < 0.0 {
        out.insert(0, '-');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut t = Table { title: "T".into(), unit: "instructions".into(), ..Table::default() };
        t.set("xen", "a", 1000.0);
        t.set("tandem", "a", 900.0);
        t.set("tandem", "b", 5.25);
        t
    }

    #[test]
    fn csv_has_a_cell_for_every_system() {
        assert_eq!(table().csv(), "instructions,xen,tandem\na,1000.0,900.0\nb,,5.2\n");
    }

    #[test]
    fn the_ratio_is_shown_only_where_both_have_a_figure() {
        let text = table().text("tandem", "xen");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].ends_with("tandem/xen"));
        assert!(lines[2].contains("1 000") && lines[2].ends_with("0.900"));
        assert!(lines[3].ends_with('-'));
        assert!(!table().text("tandem", "native").contains("tandem/native"));
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            (thousands(1_234_567.8), thousands(999.0), thousands(1000.0)),
            ("1 234 568".into(), "999".into(), "1 000".into())
        );
    }
}
