//! A table as a picture: groups of bars, each relative to the baseline system.

use crate::table::Table;
use anyhow::{anyhow, Result};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1200, 520);
const COLOURS: [RGBColor; 4] =
    [RGBColor(150, 150, 150), RGBColor(214, 120, 40), RGBColor(40, 110, 190), RGBColor(90, 160, 70)];

/// Draws `table` to an SVG file; the bar of `baseline` is 1 in every group.
pub fn relative_bars(table: &Table, baseline: &str, path: &Path) -> Result<()> {
    let ratio = |system: &str, row: &str| -> Option<f64> {
        Some(table.get(system, row)? / table.get(baseline, row).filter(|b| *b != 0.0)?)
    };
    let rows: Vec<&str> = table.rows.iter().map(|(name, _)| name.as_str()).collect();
    let highest =
        rows.iter().flat_map(|row| table.systems.iter().filter_map(|s| ratio(s, row))).fold(1.0_f64, f64::max);
    draw(table, baseline, &rows, highest, &ratio, path).map_err(|e| anyhow!("cannot draw {}: {e}", path.display()))
}

#[allow(clippy::cast_precision_loss, reason = "a few dozen bars")]
fn draw(
    table: &Table,
    baseline: &str,
    rows: &[&str],
    highest: f64,
    ratio: &dyn Fn(&str, &str) -> Option<f64>,
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&table.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..rows.len() as f64, 0.0..highest * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc(format!("{} relative to {baseline}", table.unit))
        .draw()?;
    let width = 0.8 / table.systems.len().max(1) as f64;
    for (s, system) in table.systems.iter().enumerate() {
        let colour = COLOURS[s % COLOURS.len()];
        let bars = rows.iter().enumerate().filter_map(|(r, row)| {
            let left = r as f64 + 0.1 + s as f64 * width;
            Some(Rectangle::new([(left, 0.0), (left + width * 0.92, ratio(system, row)?)], colour.filled()))
        });
        chart
            .draw_series(bars)?
            .label(system.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    chart.draw_series(
        rows.iter()
            .enumerate()
            .map(|(r, row)| Text::new((*row).to_string(), (r as f64 + 0.1, -highest * 0.02), ("sans-serif", 13))),
    )?;
    chart
        .configure_series_labels()
        .border_style(BLACK)
        .background_style(WHITE)
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_and_row_is_named_in_the_picture() {
        let mut table = Table { title: "Latency".into(), unit: "instructions".into(), ..Table::default() };
        table.set("xen", "getppid", 1000.0);
        table.set("tandem", "getppid", 900.0);
        let path = std::env::temp_dir().join(format!("tandem-plot-{}.svg", std::process::id()));
        relative_bars(&table, "xen", &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for word in ["Latency", "getppid", "xen", "tandem"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }
}
