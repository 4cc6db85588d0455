//! Lines, bars and the legend.

use super::axis::Ruler;
use super::{Marks, Panel, Plot, Scale};
use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Of every picture. A phone shows it at half of that.
pub const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 430;
const TITLE_PIXELS: i32 = 30;
pub const TEXT_PIXELS: i32 = 22;
const MARGIN: i32 = 18;
const LINE_WIDTH: u32 = 4;
/// Of a marker.
const RADIUS: i32 = 8;
/// What bars leave free between groups, of a group's width.
const GROUP_GAP: f64 = 0.16;

/// Okabe and Ito's colours, which people who see few colours tell apart (<https://jfly.uni-koeln.de/color/>), without
/// the yellow, which is pale on white.
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
const GRID: RGBColor = RGBColor(215, 215, 215);
pub const INK: RGBColor = RGBColor(30, 30, 30);

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A plot as an SVG file.
pub fn svg(plot: &Plot) -> Result<String> {
    let head = Head::of(plot);
    let height = head.height as u32 + PANEL_HEIGHT * plot.panels.len() as u32;
    on_canvas(height, |canvas| {
        head.draw(canvas, plot)?;
        let (_, body) = canvas.split_vertically(head.height);
        for (area, panel) in body.split_evenly((plot.panels.len(), 1)).iter().zip(&plot.panels) {
            draw_panel(canvas, area, panel, &up(plot, panel))?;
        }
        Ok(())
    })
}

/// A white canvas as wide as every picture.
pub fn on_canvas(height: u32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    let canvas = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    canvas.fill(&WHITE)?;
    draw(&canvas)?;
    canvas.present()?;
    drop(canvas);
    Ok(svg)
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (first, last): (i32, i32)) -> i32 {
        let (from, to) = self.range;
        first + ((place - from) / (to - from) * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, place: &f64) -> String {
        self.name(*place)
    }
}

/// What is above the panels, and where the entries of the legend are in it.
struct Head {
    height: i32,
    entries: Vec<(i32, i32)>,
}

impl Head {
    fn of(plot: &Plot) -> Self {
        let line = TEXT_PIXELS + 14;
        let mut at = (MARGIN, MARGIN + TITLE_PIXELS + 14 + line);
        let mut entries = Vec::new();
        for name in &plot.legend {
            let width = 2 * RADIUS + 12 + text_width(name) + 26;
            if at.0 > MARGIN && at.0 + width > WIDTH as i32 {
                at = (MARGIN, at.1 + line);
            }
            entries.push(at);
            at.0 += width;
        }
        Self { height: at.1 + line, entries }
    }

    fn draw(&self, canvas: &Area<'_>, plot: &Plot) -> Result<()> {
        heading(canvas, &plot.title, &plot.subtitle)?;
        for (index, (name, (x, y))) in plot.legend.iter().zip(&self.entries).enumerate() {
            marker(canvas, index, (x + RADIUS, y + TEXT_PIXELS / 2))?;
            write(canvas, name, (x + 2 * RADIUS + 10, y + TEXT_PIXELS / 2), HPos::Left)?;
        }
        Ok(())
    }
}

/// The title, and a line below it.
pub fn heading(canvas: &Area<'_>, title: &str, subtitle: &str) -> Result<()> {
    let bold = font(TITLE_PIXELS).style(FontStyle::Bold).color(&INK);
    canvas.draw(&Text::new(title.to_owned(), (MARGIN, MARGIN), bold))?;
    write(canvas, subtitle, (MARGIN, MARGIN + TITLE_PIXELS + 18), HPos::Left)
}

/// The y axis of a panel. Panels that measure the same have the same one, so that heights can be compared.
fn up(plot: &Plot, panel: &Panel) -> Ruler {
    let alike = plot.panels.iter().filter(|other| other.y == panel.y);
    Ruler::over(&panel.y.scale, alike.flat_map(|other| other.marks.points()).map(|(_, y)| y))
}

fn draw_panel(canvas: &Area<'_>, area: &Area<'_>, panel: &Panel, up: &Ruler) -> Result<()> {
    let Panel { heading, x, y, marks } = panel;
    let across = Ruler::over(&x.scale, marks.points().into_iter().map(|(x, _)| x));
    let heading_height = if heading.is_empty() { 0 } else { TEXT_PIXELS + MARGIN };
    let (top, area) = area.split_vertically(heading_height);
    if !heading.is_empty() {
        write(&top, heading, (MARGIN, heading_height / 2), HPos::Left)?;
    }
    let mut chart = ChartBuilder::on(&area);
    chart.margin(MARGIN).margin_top(MARGIN / 2).margin_right(2 * MARGIN).x_label_area_size(76).y_label_area_size(104);
    let mut chart = chart.build_cartesian_2d(across.clone(), up.clone())?;
    let mut mesh = chart.configure_mesh();
    if !matches!(x.scale, Scale::Log) {
        mesh.disable_x_mesh();
    }
    mesh.light_line_style(TRANSPARENT).bold_line_style(GRID).axis_style(INK);
    mesh.label_style(font(TEXT_PIXELS).color(&INK)).axis_desc_style(font(TEXT_PIXELS).color(&INK));
    mesh.x_desc(x.label.clone()).y_desc(y.label.clone()).draw()?;
    let pixel = |x: f64, y: f64| chart.backend_coord(&(x, y));
    match marks {
        Marks::Lines(lines) => {
            for (index, line) in lines.iter().enumerate() {
                let places = line.iter().filter_map(|(x, y)| Some((across.place(*x)?, up.place(*y)?)));
                draw_line(canvas, index, places.map(|(x, y)| pixel(x, y)).collect())?;
            }
        }
        Marks::Bars(series) => {
            let width = (1.0 - GROUP_GAP) / series.len().max(1) as f64;
            for (index, bars) in series.iter().enumerate() {
                let left = -0.5 + GROUP_GAP / 2.0 + width * index as f64;
                for (group, value) in bars.iter().enumerate() {
                    let Some(top) = up.place(*value) else { continue };
                    let left = group as f64 + left;
                    let corners = [pixel(left, top), pixel(left + width * 0.92, up.range.0)];
                    canvas.draw(&Rectangle::new(corners, colour(index).filled()))?;
                }
            }
        }
    }
    Ok(())
}

fn draw_line(canvas: &Area<'_>, index: usize, points: Vec<(i32, i32)>) -> Result<()> {
    canvas.draw(&PathElement::new(points.clone(), colour(index).stroke_width(LINE_WIDTH)))?;
    points.into_iter().try_for_each(|point| marker(canvas, index, point))
}

/// The marker of one line.
fn marker(canvas: &Area<'_>, index: usize, (x, y): (i32, i32)) -> Result<()> {
    let style = colour(index).filled();
    let shape = |corners: &[(i32, i32)]| {
        let corners: Vec<(i32, i32)> = corners.iter().map(|(right, down)| (x + right, y + down)).collect();
        canvas.draw(&Polygon::new(corners, style))
    };
    let (r, small) = (RADIUS, RADIUS / 3);
    match index % COLOURS.len() {
        0 => canvas.draw(&Circle::new((x, y), r, style))?,
        1 => shape(&[(-r, -r), (r, -r), (r, r), (-r, r)])?,
        2 => shape(&[(0, -r - 2), (r + 2, r), (-r - 2, r)])?,
        3 => shape(&[(0, -r - 3), (r + 3, 0), (0, r + 3), (-r - 3, 0)])?,
        4 => shape(&[(0, r + 2), (r + 2, -r), (-r - 2, -r)])?,
        5 => shape(&[(-r, -small), (r, -small), (r, small), (-r, small)])?,
        _ => shape(&[
            (-small, -r),
            (small, -r),
            (small, -small),
            (r, -small),
            (r, small),
            (small, small),
            (small, r),
            (-small, r),
            (-small, small),
            (-r, small),
            (-r, -small),
            (-small, -small),
        ])?,
    }
    Ok(())
}

/// The colour of an entry of the legend.
fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Text at a height in the middle of its letters.
pub fn write(canvas: &Area<'_>, text: &str, at: (i32, i32), from: HPos) -> Result<()> {
    let style = font(TEXT_PIXELS).color(&INK).pos(Pos::new(from, VPos::Center));
    Ok(canvas.draw(&Text::new(text.to_owned(), at, style))?)
}

/// The library takes a font's size for the height of a line, which is 1.24 times the size that is written.
fn font(pixels: i32) -> FontDesc<'static> {
    ("sans-serif", f64::from(pixels) * 1.24).into_font()
}

/// About as wide as the text will be: letters are half as wide as high, more or less.
pub fn text_width(text: &str) -> i32 {
    text.chars().count() as i32 * TEXT_PIXELS * 27 / 50
}

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::*;

    fn plot() -> Plot {
        let names = ["small", "<large> & more"].map(str::to_owned).to_vec();
        let x = Axis::new("size", Scale::Names(names));
        let panel = |marks, scale| Panel::new("a panel", x.clone(), Axis::new("ms a file", scale), marks);
        let lines = Marks::Lines(vec![vec![(0.0, 1.0), (1.0, 100.0)], vec![(0.0, f64::NAN), (1.0, 7.0)]]);
        let bars = Marks::Bars(vec![vec![1.0, 3.0], vec![f64::NAN, 0.5]]);
        let panels = vec![panel(lines, Scale::Log), panel(bars, Scale::Linear)];
        Plot::new("A title", "Less is better", &["one", "another"], panels)
    }

    #[test]
    fn a_plot_has_all_its_words_and_marks() {
        let svg = svg(&plot()).expect("it can be drawn");
        for text in
            ["A title", "Less is better", "one", "another", "a panel", "small", "&lt;large&gt; &amp; more", "ms a file"]
        {
            assert!(svg.contains(&format!("\n{text}\n")) || svg.contains(&format!(">{text}")), "{text} in {svg}");
        }
        let count = |what: &str| svg.matches(what).count();
        let first = "#0072B2";
        // In the legend, on its line; the line itself; its bars.
        assert_eq!((count("<circle"), count(first)), (1 + 2, 1 + 2 + 1 + 2), "{svg}");
        assert_eq!(count("#E69F00"), 1 + 1 + 1 + 1, "what is not a number has no mark");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn the_same_figures_make_the_same_file() {
        assert_eq!(svg(&plot()).expect("it can be drawn"), svg(&plot()).expect("it can be drawn"));
    }

    #[test]
    fn what_measures_the_same_has_the_same_axis() {
        let mut plot = plot();
        assert_ne!(up(&plot, &plot.panels[0]).range, up(&plot, &plot.panels[1]).range);
        plot.panels[1].y = plot.panels[0].y.clone();
        assert_eq!(up(&plot, &plot.panels[0]).range, up(&plot, &plot.panels[1]).range);
    }

    #[test]
    fn a_long_legend_takes_more_lines() {
        let mut plot = plot();
        let short = Head::of(&plot);
        plot.legend = (0..9).map(|index| format!("participant number {index}")).collect();
        let long = Head::of(&plot);
        assert!(long.height > short.height);
        assert!(long.entries.iter().all(|(x, _)| x + text_width("participant number 1") < WIDTH as i32));
    }
}
