//! The charts of a report, as SVG files without scripts and fonts: the request rate (figure 4b of the paper), the
//! tiers over time (figure 11b), latencies and sizes (figure 11a), and the popularity of roots.

use super::axis::{Axis, Scale};
use super::view::{IntervalView, ReportView, TierView, name_of};
use anyhow::Context as _;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use services::access_log::record::ContentTier;
use std::ops::Range;
use std::path::Path;

const SIZE: (u32, u32) = (900, 500);
const TEXT_PIXELS: u32 = 16;
const TITLE_PIXELS: u32 = 22;
const MARGIN: i32 = 16;
/// Okabe and Ito's colours, which people with colour vision deficiency can tell apart
/// (<https://jfly.uni-koeln.de/color/>).
const COLOURS: [RGBColor; 5] =
    [RGBColor(60, 60, 60), RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];
const GRID: RGBColor = RGBColor(220, 220, 220);
const INK: RGBColor = RGBColor(30, 30, 30);

/// A line with its name, and the index of its colour.
struct Series {
    name: String,
    colour: usize,
    points: Vec<(f64, f64)>,
}

struct Chart {
    file: &'static str,
    title: String,
    x: (&'static str, Scale),
    y: (&'static str, Scale),
    series: Vec<Series>,
}

/// Writes all charts to a folder, which is created if it does not exist.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write(dir: &Path, view: &ReportView) -> anyhow::Result<()> {
    let unwritten = || format!("{} cannot be written", dir.display());
    std::fs::create_dir_all(dir).with_context(unwritten)?;
    for chart in charts(view) {
        std::fs::write(dir.join(chart.file), svg(&chart)?).with_context(unwritten)?;
    }
    Ok(())
}

fn charts(view: &ReportView) -> Vec<Chart> {
    let latencies = of_tiers(view).map(|(tier, _, colour)| Series {
        name: name_of(tier.tier).to_owned(),
        colour,
        points: tier.first_byte_distribution.clone(),
    });
    let popularity = view.roots.popularity.iter().map(|(rank, requests)| (*rank as f64, *requests as f64)).collect();
    let one = |points| vec![Series { name: String::new(), colour: 1, points }];
    vec![
        Chart {
            file: "requests.svg",
            title: format!("Requests per second, in intervals of {} s", view.rate.interval_seconds),
            x: ("time (UTC)", Scale::Time),
            y: ("requests per second", Scale::Linear),
            series: rates(view),
        },
        Chart {
            file: "tiers.svg",
            title: "Share of requests with content by tier".to_owned(),
            x: ("time (UTC)", Scale::Time),
            y: ("share", Scale::Share),
            series: shares(view),
        },
        Chart {
            file: "popularity.svg",
            title: "Requests of each root by its rank".to_owned(),
            x: ("rank", Scale::Log),
            y: ("requests", Scale::Log),
            series: one(popularity),
        },
        Chart {
            file: "latency.svg",
            title: "Time to the first byte, cumulative, by tier".to_owned(),
            x: ("seconds", Scale::Log),
            y: ("share of requests", Scale::Share),
            series: latencies.collect(),
        },
        Chart {
            file: "sizes.svg",
            title: "Bytes of responses, cumulative".to_owned(),
            x: ("bytes", Scale::Log),
            y: ("share of responses", Scale::Share),
            series: one(view.sizes.distribution.clone()),
        },
    ]
}

type Counts = fn(&IntervalView) -> u64;
/// The requests of each tier in an interval, and its colour.
const OF_TIERS: [(ContentTier, Counts, usize); ContentTier::ALL.len()] = [
    (ContentTier::Ram, |interval| interval.ram, 1),
    (ContentTier::Disk, |interval| interval.disk, 2),
    (ContentTier::Site, |interval| interval.site.unwrap_or_default(), 4),
    (ContentTier::Network, |interval| interval.network, 3),
];

/// The tiers of a report, with their counts in an interval and their colours.
fn of_tiers(view: &ReportView) -> impl Iterator<Item = (&TierView, Counts, usize)> {
    view.tiers.iter().filter_map(|tier| {
        let (_, count, colour) = OF_TIERS.into_iter().find(|(known, ..)| known.name() == tier.tier)?;
        Some((tier, count, colour))
    })
}

fn rates(view: &ReportView) -> Vec<Series> {
    let per_second = |count: Counts| {
        let length = view.rate.interval_seconds as f64;
        let point = move |interval: &IntervalView| (interval.seconds as f64, count(interval) as f64 / length);
        view.rate.intervals.iter().map(point).collect::<Vec<_>>()
    };
    let all = Series { name: "all".to_owned(), colour: 0, points: per_second(|interval| interval.requests) };
    let of_tiers = of_tiers(view).filter(|(tier, ..)| tier.requests > 0);
    let of_tiers = of_tiers.map(|(tier, count, colour)| Series {
        name: name_of(tier.tier).to_owned(),
        colour,
        points: per_second(count),
    });
    std::iter::once(all).chain(of_tiers).collect()
}

fn shares(view: &ReportView) -> Vec<Series> {
    let share = |count: Counts| {
        let point = move |interval: &IntervalView| {
            let all: u64 = OF_TIERS.iter().map(|(_, of, _)| of(interval)).sum();
            (all > 0).then(|| (interval.seconds as f64, count(interval) as f64 / all as f64))
        };
        view.rate.intervals.iter().filter_map(point).collect::<Vec<_>>()
    };
    let series = of_tiers(view);
    series
        .map(|(tier, count, colour)| Series { name: name_of(tier.tier).to_owned(), colour, points: share(count) })
        .collect()
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, (first, last): (i32, i32)) -> i32 {
        let (from, to) = self.range;
        first + ((position - from) / (to - from) * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, position: &f64) -> String {
        self.label(*position)
    }
}

/// A chart as the text of an SVG file.
fn svg(chart: &Chart) -> anyhow::Result<String> {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let across = Axis::over(chart.x.1, points().map(|(x, _)| *x));
    let up = Axis::over(chart.y.1, points().map(|(_, y)| *y));
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        canvas.fill(&WHITE)?;
        canvas.draw(&Text::new(chart.title.clone(), (MARGIN, MARGIN), font(TITLE_PIXELS)))?;
        legend(&canvas, chart)?;
        let (_, body) = canvas.split_vertically(70);
        let mut builder = ChartBuilder::on(&body);
        builder.margin(MARGIN).margin_right(2 * MARGIN).x_label_area_size(56).y_label_area_size(76);
        let mut context = builder.build_cartesian_2d(across.clone(), up.clone())?;
        let mut mesh = context.configure_mesh();
        mesh.light_line_style(TRANSPARENT).bold_line_style(GRID).axis_style(INK);
        mesh.label_style(font(TEXT_PIXELS)).axis_desc_style(font(TEXT_PIXELS));
        mesh.x_desc(chart.x.0).y_desc(chart.y.0).draw()?;
        for series in &chart.series {
            let positions = series.points.iter().map(|(x, y)| (across.position(*x), up.position(*y)));
            let pixels: Vec<(i32, i32)> = positions.map(|at| context.backend_coord(&at)).collect();
            let colour = COLOURS[series.colour % COLOURS.len()];
            // One point is no line.
            if let [only] = *pixels {
                canvas.draw(&Circle::new(only, 4, colour.filled()))?;
            }
            canvas.draw(&PathElement::new(pixels, colour.stroke_width(2)))?;
        }
        canvas.present()?;
    }
    Ok(svg)
}

fn legend(canvas: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, chart: &Chart) -> anyhow::Result<()> {
    let mut x = MARGIN;
    for series in chart.series.iter().filter(|series| !series.name.is_empty()) {
        let colour = COLOURS[series.colour % COLOURS.len()];
        canvas.draw(&Rectangle::new([(x, 54), (x + 18, 58)], colour.filled()))?;
        canvas.draw(&Text::new(series.name.clone(), (x + 26, 47), font(TEXT_PIXELS)))?;
        x += 60 + 9 * i32::try_from(series.name.len()).unwrap_or_default();
    }
    Ok(())
}

fn font(pixels: u32) -> TextStyle<'static> {
    ("sans-serif", pixels).into_font().color(&INK)
}
