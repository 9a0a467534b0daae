//! Lines over time, as a picture.

use anyhow::{anyhow, Result};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1400, 420);
const COLOURS: [RGBColor; 4] =
    [RGBColor(40, 110, 190), RGBColor(214, 120, 40), RGBColor(90, 160, 70), RGBColor(150, 150, 150)];

/// A line's name, and its points: seconds and values.
pub type Line<'a> = (&'a str, Vec<(f64, f64)>);

/// Draws to an SVG file.
pub fn draw(title: &str, unit: &str, lines: &[Line<'_>], path: &Path) -> Result<()> {
    picture(title, unit, lines, path).map_err(|e| anyhow!("cannot draw {}: {e}", path.display()))
}

fn picture(title: &str, unit: &str, lines: &[Line<'_>], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|(_, line)| line);
    let end = points().map(|(at, _)| *at).fold(1.0_f64, f64::max);
    let most = points().map(|(_, value)| *value).fold(1.0_f64, f64::max);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..most * 1.1)?;
    chart.configure_mesh().x_desc("seconds").y_desc(unit).draw()?;
    for (n, (name, line)) in lines.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        chart
            .draw_series([PathElement::new(line.clone(), colour)])?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], colour));
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_in_the_picture_with_its_name() {
        let path = std::env::temp_dir().join(format!("tandem-lines-{}.svg", std::process::id()));
        let lines = [("first", vec![(0.0, 5.0), (0.1, 0.0), (9.0, 5.0)]), ("second", vec![(0.0, 1.0), (9.0, 700.0)])];
        draw("Working sets", "KiB", &lines, &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for word in ["Working sets", "KiB", "seconds", "first", "second", "700"] {
            assert!(svg.contains(word), "{word} is missing");
        }
        // Of each a line and a sample of it.
        assert_eq!((svg.matches("#286EBE").count(), svg.matches("#D67828").count()), (2, 2));
    }
}
