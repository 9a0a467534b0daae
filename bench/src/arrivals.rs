//! What came when, as a picture: a line over time, and marks where something failed.

use anyhow::{anyhow, Result};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1400, 420);
const LINE: RGBColor = RGBColor(40, 110, 190);
const MARK: RGBColor = RGBColor(200, 40, 40);

/// Draws to an SVG file: `came` are seconds and counts, `failed` seconds.
pub fn draw(title: &str, unit: &str, came: &[(f64, f64)], failed: &[f64], path: &Path) -> Result<()> {
    picture(title, unit, came, failed, path).map_err(|e| anyhow!("cannot draw {}: {e}", path.display()))
}

fn picture(
    title: &str,
    unit: &str,
    came: &[(f64, f64)],
    failed: &[f64],
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let from = came.first().map_or(0.0, |(s, _)| *s);
    let to = came.last().map_or(1.0, |(s, _)| *s).max(from + 1.0);
    let most = came.iter().map(|(_, count)| *count).fold(1.0_f64, f64::max);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(from..to, 0.0..most * 1.1)?;
    chart.configure_mesh().x_desc("seconds").y_desc(unit).draw()?;
    chart.draw_series([PathElement::new(came.to_vec(), LINE)])?;
    let seen = failed.iter().filter(|at| (from..=to).contains(*at));
    chart
        .draw_series(seen.map(|at| PathElement::new([(*at, 0.0), (*at, most * 1.1)], MARK)))?
        .label("it fails")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 12, y)], MARK));
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_and_failures_are_in_the_picture() {
        let path = std::env::temp_dir().join(format!("tandem-arrivals-{}.svg", std::process::id()));
        let red = |failed: &[f64]| {
            draw("Restarts", "datagrams in 100 ms", &[(0.0, 5.0), (0.1, 0.0), (9.0, 5.0)], failed, &path).unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            for word in ["Restarts", "datagrams in 100 ms", "seconds", "it fails"] {
                assert!(svg.contains(word), "{word} is missing");
            }
            svg.matches("#C82828").count()
        };
        let none = red(&[]);
        assert_eq!(red(&[0.1, 0.2]), none + 2);
        assert_eq!(red(&[50.0]), none, "it is outside");
    }
}
