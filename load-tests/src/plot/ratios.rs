//! Measures beside their goals: a bar for each case, and a line that it should reach.

use super::draw::{Area, COLOURS, INK, TEXT_PIXELS, WIDTH, heading, on_canvas, write};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const MARGIN: i32 = 18;
const HEAD: i32 = 92;
const BAR: i32 = 24;
const ROW: i32 = TEXT_PIXELS + BAR + 22;
/// For the value at the end of a bar.
const VALUE: i32 = 150;

/// One case.
#[derive(Debug, Clone)]
pub struct Ratio {
    pub name: String,
    /// The ratio to the goal: 1 is enough.
    pub of_bar: f64,
    /// The value, for people.
    pub value: String,
}

/// A bar for each case, whose length is the ratio to its goal; and a line at 1.
pub fn svg(title: &str, subtitle: &str, ratios: &[Ratio]) -> Result<String> {
    let height = HEAD + ROW * ratios.len() as i32 + MARGIN;
    let most = ratios.iter().map(|ratio| ratio.of_bar).filter(|ratio| ratio.is_finite()).fold(1.0, f64::max);
    let one = f64::from(WIDTH as i32 - 2 * MARGIN - VALUE) / most;
    on_canvas(height as u32, |canvas| {
        heading(canvas, title, subtitle)?;
        for (ratio, row) in ratios.iter().zip(0..) {
            draw(canvas, ratio, HEAD + row * ROW, one)?;
        }
        let x = MARGIN + one.round() as i32;
        let ends = vec![(x, HEAD), (x, height - MARGIN / 2)];
        Ok(canvas.draw(&PathElement::new(ends, INK.stroke_width(3)))?)
    })
}

fn draw(canvas: &Area<'_>, ratio: &Ratio, y: i32, one: f64) -> Result<()> {
    write(canvas, &ratio.name, (MARGIN, y + TEXT_PIXELS / 2), HPos::Left)?;
    let (top, length) = (y + TEXT_PIXELS + 6, (ratio.of_bar.max(0.0) * one).round() as i32);
    // A colour-blind reader sees it by the line.
    let colour = if ratio.of_bar >= 1.0 { COLOURS[0] } else { COLOURS[3] };
    canvas.draw(&Rectangle::new([(MARGIN, top), (MARGIN + length, top + BAR)], colour.filled()))?;
    write(canvas, &ratio.value, (MARGIN + length + 8, top + BAR / 2), HPos::Left)
}

#[test]
fn bars_are_as_long_as_ratios() {
    let ratio = |of_bar| Ratio { name: format!("case {of_bar}"), of_bar, value: format!("{of_bar} ×") };
    let svg = svg("A title", "More is better", &[ratio(0.5), ratio(2.0), ratio(f64::NAN)]).expect("it can be drawn");
    let most = f64::from(WIDTH as i32 - 2 * MARGIN - VALUE);
    for width in [(most / 4.0).round(), most] {
        assert!(svg.contains(&format!("width=\"{width}\"")), "{width} in {svg}");
    }
    assert!(svg.contains("case 0.5") && svg.contains("2 ×") && svg.contains("#D55E00"), "{svg}");
}
