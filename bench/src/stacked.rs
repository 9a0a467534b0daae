//! Costs divided into parts, as a picture: a bar for each system, stacked of its parts; groups of bars side by side.

use anyhow::{anyhow, Result};
use plotters::prelude::*;
use std::path::Path;

/// Bars that belong together.
pub struct Group {
    /// Written under them.
    pub name: String,
    /// Name of each bar, and the size of each of its parts.
    pub bars: Vec<(String, Vec<f64>)>,
}

const HEIGHT: u32 = 560;
const COLOURS: [RGBColor; 9] = [
    RGBColor(120, 170, 220),
    RGBColor(40, 110, 190),
    RGBColor(190, 190, 190),
    RGBColor(130, 130, 130),
    RGBColor(80, 80, 80),
    RGBColor(90, 160, 70),
    RGBColor(40, 110, 60),
    RGBColor(214, 120, 40),
    RGBColor(240, 210, 110),
];

/// Draws the groups to an SVG file; `parts` are the names of the parts, from the bottom up.
pub fn bars(title: &str, unit: &str, parts: &[&str], groups: &[Group], path: &Path) -> Result<()> {
    draw(title, unit, parts, groups, path).map_err(|e| anyhow!("cannot draw {}: {e}", path.display()))
}

#[allow(clippy::cast_precision_loss, reason = "a few dozen bars")]
fn draw(
    title: &str,
    unit: &str,
    parts: &[&str],
    groups: &[Group],
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    // A bar is one wide, and so is the room between groups.
    let width: usize = groups.iter().map(|g| g.bars.len() + 1).sum();
    let highest = groups.iter().flat_map(|g| g.bars.iter().map(|(_, p)| p.iter().sum())).fold(1.0_f64, f64::max);
    let right = 90 + 64 * i32::try_from(width)?;
    let root = SVGBackend::new(path, (u32::try_from(right + 170)?, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .margin_right(170)
        .x_label_area_size(70)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..width as f64, 0.0..highest * 1.1)?;
    chart.configure_mesh().disable_x_mesh().disable_x_axis().y_desc(unit).draw()?;
    let text = |words: &str, (x, y): (i32, i32), size: i32| {
        root.draw(&Text::new(words.to_string(), (x, y), ("sans-serif", size)))
    };
    let mut left = 0.5;
    for group in groups {
        for (n, (name, sizes)) in group.bars.iter().enumerate() {
            let x = left + n as f64;
            let mut bottom = 0.0;
            for (size, colour) in sizes.iter().zip(COLOURS) {
                let bar = Rectangle::new([(x + 0.08, bottom), (x + 0.92, bottom + size)], colour.filled());
                chart.draw_series([bar])?;
                bottom += size;
            }
            let (over, top) = chart.plotting_area().map_coordinate(&(x + 0.08, bottom));
            text(&format!("{bottom:.0}"), (over, top - 15), 12)?;
            let (_, under) = chart.plotting_area().map_coordinate(&(x, 0.0));
            for (line, word) in (0..).zip(name.split(' ')) {
                text(word, (over, under + 5 + 14 * line), 12)?;
            }
        }
        let (at, under) = chart.plotting_area().map_coordinate(&(left + 0.08, 0.0));
        text(&group.name, (at, under + 42), 15)?;
        left += group.bars.len() as f64 + 1.0;
    }
    for (n, (part, colour)) in (1..).zip(parts.iter().zip(COLOURS)) {
        let y = 60 + 22 * (i32::try_from(parts.len())? - n);
        root.draw(&Rectangle::new([(right + 10, y), (right + 24, y + 14)], colour.filled()))?;
        text(part, (right + 30, y + 1), 13)?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_bar_part_and_sum_is_in_the_picture() {
        let groups = [Group { name: "send".into(), bars: vec![("xen".into(), vec![100.0, 23.0])] }];
        let path = std::env::temp_dir().join(format!("tandem-stacked-{}.svg", std::process::id()));
        bars("Packets", "instructions", &["kernel", "driver"], &groups, &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for word in ["Packets", "send", "xen", "123", "kernel", "driver"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }
}
